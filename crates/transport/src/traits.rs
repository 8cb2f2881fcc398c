//! The transport traits that the in-memory and the NATS transport implement.

use std::time::Duration;

use async_trait::async_trait;
use remuda_domain::{
    Appended, ControlPlaneId, Event, Pool, SessionId, TenantId, WorkerId,
    bus::BusSecret,
    error::Result,
    event::Delta,
    logs::Notice,
    run::RunEndNotice,
    trace::TraceContext,
    worker::{Signal, SlotOffer},
};

use crate::GrantBatch;

/// Carries session tokens, live events and signals between processes.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// Publishes a token that wakes a worker of the pool for the session.
    async fn publish_token(&self, pool: &Pool, tenant: TenantId, session: SessionId) -> Result<Published>;

    /// Like [`publish_token`](Self::publish_token), with the trace context for the worker that takes the token.
    async fn publish_token_from(
        &self,
        pool: &Pool,
        tenant: TenantId,
        session: SessionId,
        _origin: Option<TraceContext>,
    ) -> Result<Published> {
        self.publish_token(pool, tenant, session).await
    }

    /// Removes the session's token if it was published longer than `older_than` ago. Returns whether it did.
    ///
    /// Only for the reconciler, once the store shows that no worker owns the session: NATS servers before 2.10 may
    /// keep tokens after a crash that are never delivered and block every publish. Transports without this defect do
    /// nothing.
    async fn discard_token(
        &self,
        _pool: &Pool,
        _tenant: TenantId,
        _session: SessionId,
        _older_than: Duration,
    ) -> Result<bool> {
        Ok(false)
    }

    /// Number of tokens that will never be delivered. A value above zero may be momentary: the counts behind it are
    /// not read atomically.
    async fn orphaned_tokens(&self) -> Result<u64> {
        Ok(0)
    }

    /// Repairs settings and objects that were changed or removed by hand. Returns what was repaired.
    async fn repair(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// Opens a source of tokens for one worker.
    async fn tokens(&self, pool: &Pool) -> Result<Box<dyn TokenSource>>;

    /// Publishes events of one session to the current subscribers. Never blocks for long: events that cannot be sent
    /// are dropped, and readers find them in the store.
    async fn publish_events(&self, tenant: TenantId, session: SessionId, events: &Appended);

    /// Like [`publish_events`](Self::publish_events), with a trace context for readers.
    async fn publish_events_from(
        &self,
        tenant: TenantId,
        session: SessionId,
        events: &Appended,
        _origin: Option<TraceContext>,
    ) {
        self.publish_events(tenant, session, events).await;
    }

    /// Subscribes to the events of one session from now on.
    async fn subscribe_events(&self, tenant: TenantId, session: SessionId) -> Result<Box<dyn EventSource>>;

    /// Like [`subscribe_events`](Self::subscribe_events), without waiting for the broker: events published meanwhile
    /// may be missed.
    async fn subscribe_events_unconfirmed(
        &self,
        tenant: TenantId,
        session: SessionId,
    ) -> Result<Box<dyn EventSource>> {
        self.subscribe_events(tenant, session).await
    }

    /// Notifies a control plane that a run has ended for which one of its clients waits. Never blocks: a lost notice
    /// is made up by polling the store.
    fn notify_end(&self, plane: ControlPlaneId, notice: RunEndNotice);

    /// Subscribes to the end notices for one control plane from now on.
    async fn subscribe_end_notices(&self, plane: ControlPlaneId) -> Result<Box<dyn EndNoticeSource>>;

    /// Publishes deltas to the current subscribers. Never blocks: deltas that cannot be sent are dropped, the
    /// complete message follows.
    async fn publish_deltas(&self, tenant: TenantId, session: SessionId, deltas: &[Delta]);

    /// Subscribes to the deltas of one session from now on.
    async fn subscribe_deltas(&self, tenant: TenantId, session: SessionId) -> Result<Box<dyn DeltaSource>>;

    /// Sends a signal to a worker. A lost signal only causes a delay: the same request is in the store.
    async fn send_signal(&self, worker: WorkerId, signal: &Signal) -> Result<()>;

    /// Subscribes to the signals for one worker from now on.
    async fn subscribe_signals(&self, worker: WorkerId) -> Result<Box<dyn SignalSource>>;

    /// Sends a notice to all processes that are subscribed now, including this one. It may be lost.
    async fn broadcast(&self, notice: &Notice) -> Result<()>;

    /// Subscribes to the notices for all processes from now on.
    async fn subscribe_notices(&self) -> Result<Box<dyn NoticeSource>>;

    /// Number of tokens of the pool that wait for a worker, and that workers hold. A token put back with a delay
    /// counts as taken until then.
    async fn token_counts(&self, pool: &Pool) -> Result<TokenCounts>;

    /// Sends grants to workers of other processes. `None` if there are none.
    fn grant_transport(&self) -> Option<&dyn GrantTransport> {
        None
    }

    /// Signs the messages of this process with the key that its worker has registered, if it has no better one.
    /// Transports that need no signatures do nothing.
    fn sign_as(&self, _worker: WorkerId, _secret: &BusSecret) {}

    /// Returns once the transport has responded.
    async fn ping(&self) -> Result<()>;
}

/// Carries slot offers from workers to control planes, and grants back to the workers. Like everything here it may
/// lose messages.
#[async_trait]
pub trait GrantTransport: Send + Sync {
    /// Sends an offer to all control planes that are subscribed now.
    async fn offer(&self, offer: &SlotOffer) -> Result<()>;

    /// Subscribes to the offers of all workers from now on.
    async fn subscribe_offers(&self) -> Result<Box<dyn OfferSource>>;

    /// Sends a grant batch to a worker. Batches of one sender arrive in order.
    async fn send_grants(&self, worker: WorkerId, batch: &GrantBatch) -> Result<()>;

    /// Subscribes to the grant batches for one worker. Batches sent after this returned are received.
    async fn subscribe_grants(&self, worker: WorkerId) -> Result<Box<dyn GrantSource>>;

    /// Maximum size of an encoded grant batch.
    fn max_grant_bytes(&self) -> usize;
}

/// Result of publishing a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    Stored,
    /// The session already has a token: the worker that takes it will see the new run too.
    AlreadyScheduled,
}

/// Tokens of one pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenCounts {
    pub waiting: u64,
    pub taken: u64,
}

/// Source of tokens for one worker.
#[async_trait]
pub trait TokenSource: Send {
    /// Waits for up to `max` tokens. Returns at least one, or none after some seconds, so that a wake-up lost by the
    /// server is made up. Cancel-safe: tokens of a dropped call are redelivered.
    async fn take(&mut self, max: usize) -> Result<Vec<Box<dyn Token>>>;
}

/// The request to work on a session. A dropped token is redelivered after a while.
#[async_trait]
pub trait Token: Send + Sync {
    fn tenant(&self) -> TenantId;
    fn session(&self) -> SessionId;
    /// Trace context it was published with.
    fn origin(&self) -> Option<TraceContext>;
    /// Extends the token's redelivery timeout.
    async fn keep_alive(&self) -> Result<()>;
    /// How often to call `keep_alive`.
    fn keep_alive_every(&self) -> Duration;
    /// Removes the token and returns when it is gone.
    async fn finish(self: Box<Self>) -> Result<()>;
    /// Puts the token back for redelivery after `delay`.
    async fn retry_after(self: Box<Self>, delay: Duration) -> Result<()>;
}

/// Live events of one session.
#[async_trait]
pub trait EventSource: Send {
    /// The next batch. `None` when the source has ended and must be reopened. Cancel-safe.
    ///
    /// An empty batch is a hint: a message arrived that is not proven to come from this installation, so events may be
    /// in the store that were not received.
    async fn next(&mut self) -> Option<Vec<Event>>;
    /// Trace context of the last batch.
    fn origin(&self) -> Option<TraceContext> {
        None
    }
}

/// End notices for one control plane.
#[async_trait]
pub trait EndNoticeSource: Send {
    /// The next notices. `None` when the source has ended and must be reopened. Cancel-safe.
    ///
    /// A notice without a result may be a hint that is not proven: the run must be read from the store.
    async fn next(&mut self) -> Option<Vec<RunEndNotice>>;
}

/// Deltas of one session.
#[async_trait]
pub trait DeltaSource: Send {
    /// The next deltas. `None` when the source has ended and must be reopened. Cancel-safe.
    async fn next(&mut self) -> Option<Vec<Delta>>;
}

/// Signals for one worker.
#[async_trait]
pub trait SignalSource: Send {
    /// The next signal. `None` when the source has ended and must be reopened. Cancel-safe.
    async fn next(&mut self) -> Option<Signal>;
    /// Whether the last signal is proven to come from this installation. Otherwise it is a hint to ask the store.
    fn is_proven(&self) -> bool {
        true
    }
}

/// Slot offers of all workers.
#[async_trait]
pub trait OfferSource: Send {
    /// The next offer. `None` when the source has ended and must be reopened. Cancel-safe.
    async fn next(&mut self) -> Option<SlotOffer>;
}

/// Grant batches for one worker.
#[async_trait]
pub trait GrantSource: Send {
    /// The next batch. `None` when the source has ended and must be reopened. Cancel-safe.
    async fn next(&mut self) -> Option<GrantBatch>;
    /// Whether the last batch is proven to come from a control plane. Otherwise it is a hint: its grants have no
    /// bodies, and nothing else in it can be trusted.
    fn is_proven(&self) -> bool {
        true
    }
}

/// Notices for all processes.
#[async_trait]
pub trait NoticeSource: Send {
    /// The next notice. `None` when the source has ended and must be reopened. Cancel-safe.
    async fn next(&mut self) -> Option<Notice>;
}
