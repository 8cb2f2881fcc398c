//! A sandbox that is acquired at first use.

use std::sync::Arc;

use remuda_domain::{error::Result, execution::BackendKind};
use tokio::sync::{Notify, OnceCell};

use crate::traits::{Backend, Sandbox, SandboxRequest};

/// The sandbox of one session, acquired when the first tool needs it. Runs whose tools need none cost none.
#[derive(Debug)]
pub struct LazySandbox {
    backend: Arc<dyn Backend>,
    request: SandboxRequest,
    sandbox: OnceCell<Arc<dyn Sandbox>>,
    acquired: Notify,
}

impl LazySandbox {
    #[must_use]
    pub fn new(backend: Arc<dyn Backend>, request: SandboxRequest) -> Self {
        Self { backend, request, sandbox: OnceCell::new(), acquired: Notify::new() }
    }

    /// Returns the sandbox. Concurrent callers share one acquisition; the next call retries a failed one.
    pub async fn get(&self) -> Result<Arc<dyn Sandbox>> {
        let sandbox = self.sandbox.get_or_try_init(|| self.backend.acquire(&self.request)).await?;
        self.acquired.notify_waiters();
        Ok(Arc::clone(sandbox))
    }

    /// Waits until another caller has acquired the sandbox. Cancel-safe.
    pub async fn ready(&self) -> &Arc<dyn Sandbox> {
        loop {
            let acquired = self.acquired.notified();
            tokio::pin!(acquired);
            // Registers before the check, so that an acquisition in between is not missed.
            acquired.as_mut().enable();
            if let Some(sandbox) = self.sandbox.get() {
                return sandbox;
            }
            acquired.await;
        }
    }

    /// Kind of the backend.
    #[must_use]
    pub fn backend(&self) -> BackendKind {
        self.backend.kind()
    }

    /// The sandbox, if it was acquired already.
    #[must_use]
    pub fn acquired(&self) -> Option<&Arc<dyn Sandbox>> {
        self.sandbox.get()
    }
}
