//! The seam.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use remuda_domain::{
    Appended, Event, PlaneId, Pool, SessionId, TenantId, WorkerId,
    error::Result,
    event::Delta,
    logs::Notice,
    run::LastWords,
    trace::TraceContext,
    worker::{Offer, Signal},
};

/// Carries wake-ups, live events and signals between processes.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// Wakes a worker of the pool for the session.
    async fn publish_token(&self, pool: &Pool, tenant: TenantId, session: SessionId) -> Result<Published>;

    /// The same, telling whoever takes the token what it belongs to in a trace.
    async fn publish_token_from(
        &self,
        pool: &Pool,
        tenant: TenantId,
        session: SessionId,
        _origin: Option<TraceContext>,
    ) -> Result<Published> {
        self.publish_token(pool, tenant, session).await
    }

    /// Removes the session's token if it was published longer than `older_than` ago, and says whether it did.
    ///
    /// For the sweeper alone, once the store shows that nobody holds the session: NATS servers before 2.10 keep tokens
    /// after a crash that nobody will be given and that refuse every publish. A transport without such tokens has nothing to do.
    async fn discard_token(
        &self,
        _pool: &Pool,
        _tenant: TenantId,
        _session: SessionId,
        _older_than: Duration,
    ) -> Result<bool> {
        Ok(false)
    }

    /// How many tokens there are that no worker will ever be given. More than none for a moment means nothing: the numbers it
    /// is made of are not read at one moment.
    async fn orphaned_tokens(&self) -> Result<u64> {
        Ok(0)
    }

    /// Puts right what someone changed by hand or removed, and says what that was.
    async fn mend(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// Opens a source of tokens for one worker.
    async fn tokens(&self, pool: &Pool) -> Result<Box<dyn TokenSource>>;

    /// Sends events of one session to whoever listens now. Never blocks for long: events nobody could be told of are
    /// dropped, readers find them in the store.
    async fn publish_events(&self, tenant: TenantId, session: SessionId, events: &Appended);

    /// The same, telling readers what the events belong to in a trace.
    async fn publish_events_from(
        &self,
        tenant: TenantId,
        session: SessionId,
        events: &Appended,
        _origin: Option<TraceContext>,
    ) {
        self.publish_events(tenant, session, events).await;
    }

    /// Listens to the events of one session from now on.
    async fn subscribe_events(&self, tenant: TenantId, session: SessionId) -> Result<Box<dyn EventSource>>;

    /// The same without waiting until the broker has taken note: what is published meanwhile may be missed.
    async fn listen_events(&self, tenant: TenantId, session: SessionId) -> Result<Box<dyn EventSource>> {
        self.subscribe_events(tenant, session).await
    }

    /// Tells a control plane that a run has ended for which somebody waits there. Never waits: who is not told looks into the store.
    fn tell_end(&self, plane: PlaneId, words: LastWords);

    /// Listens to the ends of runs that are told to one control plane from now on.
    async fn subscribe_ends(&self, plane: PlaneId) -> Result<Box<dyn EndSource>>;

    /// Sends pieces of messages to whoever listens now. Never waits: pieces nobody could be told of are dropped, the message
    /// follows whole.
    async fn publish_deltas(&self, tenant: TenantId, session: SessionId, deltas: &[Delta]);

    /// Listens to the pieces of messages of one session from now on.
    async fn subscribe_deltas(&self, tenant: TenantId, session: SessionId) -> Result<Box<dyn DeltaSource>>;

    /// Sends a signal to a worker. A lost signal is only a late one: the same wish stands in the store.
    async fn send_signal(&self, worker: WorkerId, signal: &Signal) -> Result<()>;

    /// Listens to the signals for one worker from now on.
    async fn subscribe_signals(&self, worker: WorkerId) -> Result<Box<dyn SignalSource>>;

    /// Tells all processes that listen now, this one too. It may be lost.
    async fn broadcast(&self, notice: &Notice) -> Result<()>;

    /// Listens to what is told to all processes from now on.
    async fn subscribe_notices(&self) -> Result<Box<dyn NoticeSource>>;

    /// How many tokens of the pool there are: waiting for a worker, and in a worker's hands. One given back for later counts
    /// as taken until then.
    async fn token_counts(&self, pool: &Pool) -> Result<TokenCounts>;

    /// Who brings grants to workers of other processes. Nothing where there are none.
    fn carrier(&self) -> Option<&dyn Carrier> {
        None
    }

    /// Answers when the transport does.
    async fn ping(&self) -> Result<()>;
}

/// Brings what was granted to workers of other processes, and tells where there is room. Like everything here it may lose what it carries.
#[async_trait]
pub trait Carrier: Send + Sync {
    /// Tells all control planes that listen now.
    async fn offer(&self, offer: &Offer) -> Result<()>;

    /// Listens to the offers of all workers from now on.
    async fn subscribe_offers(&self) -> Result<Box<dyn OfferSource>>;

    /// Sends a parcel to a worker. Those of one sender arrive in order.
    async fn send_parcel(&self, worker: WorkerId, parcel: Bytes) -> Result<()>;

    /// Listens to the parcels for one worker from now on: who sends one after this returned is heard.
    async fn subscribe_parcels(&self, worker: WorkerId) -> Result<Box<dyn ParcelSource>>;

    /// How large a parcel may be.
    fn max_parcel(&self) -> usize;
}

/// What became of a token that was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    Stored,
    /// The session already has a token: whoever takes it will see the new run too.
    AlreadyScheduled,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenCounts {
    pub waiting: u64,
    pub taken: u64,
}

/// Where a worker takes tokens from.
#[async_trait]
pub trait TokenSource: Send {
    /// Waits for up to `max` tokens; returns at least one unless a while passes without any, which keeps a lost wake-up of
    /// the server from lasting. Cancel-safe: tokens of a dropped call come back.
    async fn take(&mut self, max: usize) -> Result<Vec<Box<dyn Token>>>;
}

/// The right to look at a session. Dropping it lets it come back after a while.
#[async_trait]
pub trait Token: Send + Sync {
    fn tenant(&self) -> TenantId;
    fn session(&self) -> SessionId;
    /// What it was published for, in a trace.
    fn origin(&self) -> Option<TraceContext>;
    /// Says that its holder still works, so that it does not come back to another.
    async fn keep_alive(&self) -> Result<()>;
    /// How often `keep_alive` is wanted.
    fn keep_alive_every(&self) -> Duration;
    /// Removes the token and returns when it is gone.
    async fn finish(self: Box<Self>) -> Result<()>;
    /// Gives the token back for another try after `delay`.
    async fn retry_after(self: Box<Self>, delay: Duration) -> Result<()>;
}

/// Live events of one session.
#[async_trait]
pub trait EventSource: Send {
    /// The next batch; `None` when the source has ended and must be opened anew. Cancel-safe.
    async fn next(&mut self) -> Option<Vec<Event>>;
    /// What the batch that came last belongs to in a trace.
    fn origin(&self) -> Option<TraceContext> {
        None
    }
}

/// Ends of runs that are told to one control plane.
#[async_trait]
pub trait EndSource: Send {
    /// The next ends; `None` when the source has ended and must be opened anew. Cancel-safe.
    async fn next(&mut self) -> Option<Vec<LastWords>>;
}

/// Pieces of messages of one session.
#[async_trait]
pub trait DeltaSource: Send {
    /// The next pieces; `None` when the source has ended and must be opened anew. Cancel-safe.
    async fn next(&mut self) -> Option<Vec<Delta>>;
}

/// Signals for one worker.
#[async_trait]
pub trait SignalSource: Send {
    /// The next signal; `None` when the source has ended and must be opened anew. Cancel-safe.
    async fn next(&mut self) -> Option<Signal>;
}

/// Offers of all workers.
#[async_trait]
pub trait OfferSource: Send {
    /// The next offer; `None` when the source has ended and must be opened anew. Cancel-safe.
    async fn next(&mut self) -> Option<Offer>;
}

/// Parcels for one worker.
#[async_trait]
pub trait ParcelSource: Send {
    /// The next parcel; `None` when the source has ended and must be opened anew. Cancel-safe.
    async fn next(&mut self) -> Option<Bytes>;
}

/// What is told to all processes.
#[async_trait]
pub trait NoticeSource: Send {
    /// The next notice; `None` when the source has ended and must be opened anew. Cancel-safe.
    async fn next(&mut self) -> Option<Notice>;
}
