//! Publishes the tokens of all runnable sessions, a page at a time.

use std::sync::Arc;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use remuda_dispatch::Dispatcher;
use remuda_domain::{SessionId, error::Result};
use remuda_store::{RunnableSession, Store};
use remuda_transport::Published;

const PAGE: u32 = 1000;
/// Concurrent publishes.
const IN_FLIGHT: usize = 64;

/// One pass over all runnable sessions, in the order of their ids.
pub(super) struct TokenSweep {
    store: Arc<dyn Store>,
    dispatcher: Dispatcher,
    after: Option<SessionId>,
    ended: bool,
}

impl TokenSweep {
    pub(super) fn new(store: &Arc<dyn Store>, dispatcher: &Dispatcher) -> Self {
        Self { store: Arc::clone(store), dispatcher: dispatcher.clone(), after: None, ended: false }
    }

    /// Publishes the tokens of the next page and returns the result of each. `None` after the last page.
    pub(super) async fn next_page(&mut self) -> Result<Option<Vec<(RunnableSession, Published)>>> {
        if self.ended {
            return Ok(None);
        }
        let page = self.store.runnable_sessions(self.after, PAGE).await?;
        self.after = page.last().map(|last| last.session);
        self.ended = page.len() < PAGE as usize;
        let published = stream::iter(page).map(|runnable| async {
            let published = publish(&self.dispatcher, &runnable).await?;
            Ok((runnable, published))
        });
        published.buffer_unordered(IN_FLIGHT).try_collect().await.map(Some)
    }
}

pub(super) async fn publish(dispatcher: &Dispatcher, runnable: &RunnableSession) -> Result<Published> {
    dispatcher.wake(&runnable.pool, runnable.tenant, runnable.session, None).await
}
