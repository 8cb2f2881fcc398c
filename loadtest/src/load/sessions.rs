//! The sessions that runs are spread over.

use std::sync::Arc;

use remuda_domain::SessionId;
use uuid::Uuid;

use crate::database_seed::nth_id;

#[derive(Clone, Debug)]
pub(crate) enum Sessions {
    /// A list of ids.
    Listed(Vec<Arc<str>>),
    /// This many consecutive ids.
    Consecutive { first: Uuid, count: usize },
}

impl Sessions {
    pub(crate) fn consecutive(first: Uuid, count: usize) -> Self {
        Self::Consecutive { first, count }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Listed(ids) => ids.len(),
            Self::Consecutive { count, .. } => *count,
        }
    }

    /// The id of the session at this index.
    pub(crate) fn id(&self, index: usize) -> Arc<str> {
        match self {
            Self::Listed(ids) => Arc::clone(&ids[index]),
            Self::Consecutive { first, .. } => {
                Arc::from(SessionId::from_uuid(nth_id(*first, index as u64)).to_string())
            }
        }
    }
}
