//! The sessions that runs are spread over.

use std::sync::Arc;

use remuda_domain::SessionId;
use uuid::Uuid;

use crate::seed::counted;

#[derive(Clone, Debug)]
pub(crate) enum Sessions {
    /// By their ids.
    Made(Vec<Arc<str>>),
    /// So many from this id on.
    Counted { first: Uuid, count: usize },
}

impl Sessions {
    pub(crate) fn counted(first: Uuid, count: usize) -> Self {
        Self::Counted { first, count }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Made(ids) => ids.len(),
            Self::Counted { count, .. } => *count,
        }
    }

    /// The id of the one at this place.
    pub(crate) fn id(&self, place: usize) -> Arc<str> {
        match self {
            Self::Made(ids) => Arc::clone(&ids[place]),
            Self::Counted { first, .. } => {
                Arc::from(SessionId::from_uuid(counted(*first, place as u64)).to_string())
            }
        }
    }
}
