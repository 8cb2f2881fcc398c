//! The set of backends of one worker.

use std::{collections::BTreeMap, sync::Arc};

use remuda_domain::{
    error::{Code, Error, Result},
    execution::BackendKind,
};

use crate::traits::Backend;

/// The backends of a worker, by kind. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Backends(Arc<BTreeMap<BackendKind, Arc<dyn Backend>>>);

impl Backends {
    /// The backend of that kind. A session with backend `none` executes nothing and fails here.
    pub fn get(&self, kind: BackendKind) -> Result<&Arc<dyn Backend>> {
        self.0.get(&kind).ok_or_else(|| match kind {
            BackendKind::None => Error::new(
                Code::ToolsDisabled,
                "this session only talks: it has no tools and executes nothing",
            ),
            kind => Error::unavailable(format!("this worker has no {} backend", kind.as_str())),
        })
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn Backend>> {
        self.0.values()
    }
}

impl FromIterator<Arc<dyn Backend>> for Backends {
    fn from_iter<T: IntoIterator<Item = Arc<dyn Backend>>>(backends: T) -> Self {
        Self(Arc::new(backends.into_iter().map(|backend| (backend.kind(), backend)).collect()))
    }
}
