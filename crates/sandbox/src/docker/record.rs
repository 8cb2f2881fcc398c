//! What the book says of a container.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use remuda_domain::{
    error::{Error, Result},
    execution::{BackendKind, SandboxRecord, SandboxState},
};
use tokio::time::timeout;

use super::create::Plan;
use crate::book::SandboxBook;

/// A container waits no longer for the book.
const PATIENCE: Duration = Duration::from_secs(10);

/// One page of the book.
#[derive(Debug)]
pub(super) struct Record {
    book: Option<Arc<dyn SandboxBook>>,
    contents: Mutex<SandboxRecord>,
}

impl Record {
    pub(super) fn new(book: Option<Arc<dyn SandboxBook>>, plan: &Plan, engine: String) -> Self {
        let now = chrono::Utc::now();
        let contents = SandboxRecord {
            id: plan.sandbox,
            holder: plan.holder,
            worker: plan.maker.worker,
            backend: BackendKind::Docker,
            engine,
            handle: None,
            image: plan.image.name.clone(),
            digest: plan.image.digest.clone(),
            state: SandboxState::Creating,
            created_at: now,
            used_at: now,
        };
        Self { book, contents: Mutex::new(contents) }
    }

    /// Writes it down as it is.
    pub(super) async fn save(&self) -> Result<()> {
        let contents = self.lock().clone();
        self.within(|book| async move { book.save(&contents).await }).await
    }

    /// Changes it. What the book then still says is old, not wrong: the container is in it.
    pub(super) async fn update(&self, change: impl FnOnce(&mut SandboxRecord)) {
        {
            let mut contents = self.lock();
            change(&mut contents);
            contents.used_at = chrono::Utc::now();
        }
        if let Err(error) = self.save().await {
            tracing::warn!(error = error.chain(), "cannot write down what became of a container");
        }
    }

    /// There is no such container any more.
    pub(super) async fn forget(&self) {
        let sandbox = self.lock().id;
        if let Err(error) = self.within(|book| async move { book.forget(sandbox).await }).await {
            tracing::warn!(error = error.chain(), %sandbox, "cannot write down that a container is gone");
        }
    }

    async fn within<F: Future<Output = Result<()>>>(
        &self,
        write: impl FnOnce(Arc<dyn SandboxBook>) -> F,
    ) -> Result<()> {
        let Some(book) = &self.book else { return Ok(()) };
        let late = || Err(Error::unavailable("the record of sandboxes does not answer"));
        timeout(PATIENCE, write(Arc::clone(book))).await.unwrap_or_else(|_| late())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, SandboxRecord> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
