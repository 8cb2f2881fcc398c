//! A transport that blocks forever after a given commit.

use std::sync::{
    Mutex,
    atomic::{AtomicUsize, Ordering},
};

use async_trait::async_trait;
use remuda_domain::{
    Appended, ControlPlaneId, Pool, SessionId, TenantId, WorkerId, error::Result, event::Delta, logs::Notice,
    run::RunEndNotice, worker::Signal,
};
use remuda_transport::{
    DeltaSource, EndNoticeSource, EventSource, Memory, NoticeSource, Published, SignalSource, TokenCounts,
    TokenSource, Transport,
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Commits are published immediately after the store accepted them. A worker that never returns from the publication
/// is as good as killed between the two.
#[derive(Default)]
pub(crate) struct StoppingTransport {
    inner: Memory,
    published: AtomicUsize,
    /// Counted from 1; 0 is never reached.
    stop_after: AtomicUsize,
    stopped: Notify,
    /// A token to cancel at a later commit.
    cancel_at: Mutex<Option<(usize, CancellationToken)>>,
}

impl StoppingTransport {
    pub(crate) fn stop_after(&self, commits: usize) {
        self.published.store(0, Ordering::SeqCst);
        self.stop_after.store(commits, Ordering::SeqCst);
    }

    /// Cancels a token right after a commit, counted from 1.
    pub(crate) fn cancel_at_commit(&self, commits: usize, token: &CancellationToken) {
        self.published.store(0, Ordering::SeqCst);
        *self.cancel_at.lock().unwrap() = Some((commits, token.clone()));
    }

    pub(crate) fn published(&self) -> usize {
        self.published.load(Ordering::SeqCst)
    }

    /// Returns when the transport blocks.
    pub(crate) async fn stopped(&self) {
        self.stopped.notified().await;
    }
}

#[async_trait]
impl Transport for StoppingTransport {
    async fn publish_events(&self, tenant: TenantId, session: SessionId, events: &Appended) {
        let published = self.published.fetch_add(1, Ordering::SeqCst) + 1;
        let due = self.cancel_at.lock().unwrap().take_if(|(commit, _)| *commit == published);
        if let Some((_, token)) = due {
            token.cancel();
        }
        if published == self.stop_after.load(Ordering::SeqCst) {
            self.stopped.notify_one();
            std::future::pending::<()>().await;
        }
        self.inner.publish_events(tenant, session, events).await;
    }

    async fn publish_token(&self, pool: &Pool, tenant: TenantId, session: SessionId) -> Result<Published> {
        self.inner.publish_token(pool, tenant, session).await
    }

    async fn tokens(&self, pool: &Pool) -> Result<Box<dyn TokenSource>> {
        self.inner.tokens(pool).await
    }

    async fn subscribe_events(&self, tenant: TenantId, session: SessionId) -> Result<Box<dyn EventSource>> {
        self.inner.subscribe_events(tenant, session).await
    }

    fn notify_end(&self, plane: ControlPlaneId, notice: RunEndNotice) {
        self.inner.notify_end(plane, notice);
    }

    async fn subscribe_end_notices(&self, plane: ControlPlaneId) -> Result<Box<dyn EndNoticeSource>> {
        self.inner.subscribe_end_notices(plane).await
    }

    async fn publish_deltas(&self, tenant: TenantId, session: SessionId, deltas: &[Delta]) {
        self.inner.publish_deltas(tenant, session, deltas).await;
    }

    async fn subscribe_deltas(&self, tenant: TenantId, session: SessionId) -> Result<Box<dyn DeltaSource>> {
        self.inner.subscribe_deltas(tenant, session).await
    }

    async fn send_signal(&self, worker: WorkerId, signal: &Signal) -> Result<()> {
        self.inner.send_signal(worker, signal).await
    }

    async fn subscribe_signals(&self, worker: WorkerId) -> Result<Box<dyn SignalSource>> {
        self.inner.subscribe_signals(worker).await
    }

    async fn broadcast(&self, notice: &Notice) -> Result<()> {
        self.inner.broadcast(notice).await
    }

    async fn subscribe_notices(&self) -> Result<Box<dyn NoticeSource>> {
        self.inner.subscribe_notices().await
    }

    async fn token_counts(&self, pool: &Pool) -> Result<TokenCounts> {
        self.inner.token_counts(pool).await
    }

    async fn ping(&self) -> Result<()> {
        self.inner.ping().await
    }
}
