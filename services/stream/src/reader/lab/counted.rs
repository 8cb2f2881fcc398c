//! A transport that counts who listens.

use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use remuda_domain::{
    Appended, PlaneId, Pool, SessionId, TenantId, WorkerId, error::Result, event::Delta, logs::Notice,
    run::LastWords, worker::Signal,
};
use remuda_transport::{
    DeltaSource, EndSource, EventSource, Memory, NoticeSource, Published, SignalSource, TokenCounts,
    TokenSource, Transport,
};

#[derive(Default)]
pub(in crate::reader) struct Counted {
    inner: Memory,
    events: AtomicUsize,
    deltas: AtomicUsize,
}

impl Counted {
    /// How often events, and pieces, were listened to.
    pub(in crate::reader) fn subscriptions(&self) -> (usize, usize) {
        (self.events.load(Ordering::SeqCst), self.deltas.load(Ordering::SeqCst))
    }
}

#[async_trait]
impl Transport for Counted {
    async fn publish_token(&self, pool: &Pool, tenant: TenantId, session: SessionId) -> Result<Published> {
        self.inner.publish_token(pool, tenant, session).await
    }

    async fn tokens(&self, pool: &Pool) -> Result<Box<dyn TokenSource>> {
        self.inner.tokens(pool).await
    }

    async fn publish_events(&self, tenant: TenantId, session: SessionId, events: &Appended) {
        self.inner.publish_events(tenant, session, events).await;
    }

    async fn subscribe_events(&self, tenant: TenantId, session: SessionId) -> Result<Box<dyn EventSource>> {
        self.events.fetch_add(1, Ordering::SeqCst);
        self.inner.subscribe_events(tenant, session).await
    }

    fn tell_end(&self, plane: PlaneId, words: LastWords) {
        self.inner.tell_end(plane, words);
    }

    async fn subscribe_ends(&self, plane: PlaneId) -> Result<Box<dyn EndSource>> {
        self.inner.subscribe_ends(plane).await
    }

    async fn publish_deltas(&self, tenant: TenantId, session: SessionId, deltas: &[Delta]) {
        self.inner.publish_deltas(tenant, session, deltas).await;
    }

    async fn subscribe_deltas(&self, tenant: TenantId, session: SessionId) -> Result<Box<dyn DeltaSource>> {
        self.deltas.fetch_add(1, Ordering::SeqCst);
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
