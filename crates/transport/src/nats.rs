//! The transport over NATS: tokens in a JetStream work queue, events, deltas and signals over core NATS.
//!
//! Two connections: one for tokens and signals, one for events and deltas, so that a flood of these cannot delay the acks
//! that keep a token with its worker. Every wait has an end: while disconnected, the client library would otherwise queue commands
//! and then block for ever.

mod carrier;
mod demand;
mod ends;
mod link;
mod live;
mod names;
mod notices;
mod options;
mod prepare;
mod settings;
mod signals;
mod tokens;
mod trace;
mod version;

use std::{fmt, sync::Arc, time::Duration};

use async_nats::jetstream::{self, context::ContextBuilder};
use async_trait::async_trait;
use bytes::Bytes;
use remuda_domain::{
    Appended, Event, PlaneId, Pool, SessionId, TenantId, WorkerId,
    error::{Error, Result},
    event::Delta,
    logs::Notice,
    run::LastWords,
    trace::TraceContext,
    worker::Signal,
};
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use self::{
    link::Link,
    live::{Live, Text},
    names::Names,
};
pub use self::{
    options::NatsOptions,
    prepare::{ConsumerReport, NatsReport},
};
use crate::{
    meters::Meters,
    traits::{
        Carrier, DeltaSource, EndSource, EventSource, NoticeSource, Published, SignalSource, TokenCounts,
        TokenSource, Transport,
    },
};

/// Tokens, events and signals over NATS. Clones share the connections.
///
/// In a cluster a new subscription takes a moment to be known on every server, so a reader of events that must miss
/// nothing also looks into the store now and then.
#[derive(Clone)]
pub struct Nats {
    shared: Arc<Shared>,
}

struct Shared {
    options: NatsOptions,
    names: Names,
    control: Link,
    events: Link,
    jetstream: jetstream::Context,
    /// Lets one task at a time repair a wiped server; the others find it repaired.
    repair: Semaphore,
    ends: ends::Outbox,
    /// Gives back tokens that arrive for sources that are gone, reads subscriptions, and tells of ends.
    tasks: TaskTracker,
    meters: Meters,
}

impl Nats {
    /// Connects to the servers and checks their version. Call [`Nats::prepare`] before the first use.
    pub async fn connect(options: NatsOptions) -> Result<Self> {
        let names = Names::new(&options.prefix)?;
        options.check()?;
        let (control, events) = tokio::try_join!(
            Link::connect("remuda-control", &options),
            Link::connect("remuda-events", &options)
        )?;
        version::check(&control.version(), options.replicas)?;
        let jetstream =
            ContextBuilder::new().timeout(options.request_timeout).build(control.client().clone());
        let shared = Shared {
            options,
            names,
            control,
            events,
            jetstream,
            repair: Semaphore::new(1),
            ends: ends::Outbox::default(),
            tasks: TaskTracker::new(),
            meters: Meters::default(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Waits until tokens of dropped sources are given back (some seconds) and everything sent has left this process. The
    /// caller drops its sources first, and bounds the wait.
    pub async fn close(&self) -> Result<()> {
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
        self.shared.control.flush().await?;
        self.shared.events.flush().await
    }
}

impl fmt::Debug for Nats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nats").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

#[async_trait]
impl Transport for Nats {
    async fn publish_token(&self, pool: &Pool, tenant: TenantId, session: SessionId) -> Result<Published> {
        self.publish_token_from(pool, tenant, session, None).await
    }

    async fn publish_token_from(
        &self,
        pool: &Pool,
        tenant: TenantId,
        session: SessionId,
        origin: Option<TraceContext>,
    ) -> Result<Published> {
        let published = tokens::publish(&self.shared, pool, tenant, session, origin).await;
        self.shared.meters.published(&published);
        published
    }

    async fn discard_token(
        &self,
        pool: &Pool,
        tenant: TenantId,
        session: SessionId,
        older_than: Duration,
    ) -> Result<bool> {
        tokens::discard(&self.shared, pool, tenant, session, older_than).await
    }

    async fn orphaned_tokens(&self) -> Result<u64> {
        Ok(self.inspect().await?.orphans)
    }

    async fn mend(&self) -> Result<Vec<String>> {
        Nats::mend(self).await
    }

    async fn tokens(&self, pool: &Pool) -> Result<Box<dyn TokenSource>> {
        Ok(Box::new(tokens::NatsTokens::new(Arc::clone(&self.shared), pool.clone())))
    }

    async fn publish_events(&self, tenant: TenantId, session: SessionId, events: &Appended) {
        self.publish_events_from(tenant, session, events, None).await;
    }

    async fn publish_events_from(
        &self,
        tenant: TenantId,
        session: SessionId,
        events: &Appended,
        origin: Option<TraceContext>,
    ) {
        let text = events.json().map(|json| Bytes::from_owner(Text(Arc::clone(json))));
        live::publish(&self.shared, self.shared.names.events(tenant, session), events, text, origin).await;
    }

    async fn subscribe_events(&self, tenant: TenantId, session: SessionId) -> Result<Box<dyn EventSource>> {
        let subject = self.shared.names.events(tenant, session);
        Ok(Box::new(Live::<Event>::open(&self.shared, subject).await?))
    }

    async fn listen_events(&self, tenant: TenantId, session: SessionId) -> Result<Box<dyn EventSource>> {
        let subject = self.shared.names.events(tenant, session);
        Ok(Box::new(Live::<Event>::open_soon(&self.shared, subject).await?))
    }

    fn tell_end(&self, plane: PlaneId, words: LastWords) {
        ends::tell(&self.shared, plane, words);
    }

    async fn subscribe_ends(&self, plane: PlaneId) -> Result<Box<dyn EndSource>> {
        Ok(Box::new(ends::NatsEnds::open(&self.shared, plane).await?))
    }

    async fn publish_deltas(&self, tenant: TenantId, session: SessionId, deltas: &[Delta]) {
        live::publish(&self.shared, self.shared.names.deltas(tenant, session), deltas, None, None).await;
    }

    async fn subscribe_deltas(&self, tenant: TenantId, session: SessionId) -> Result<Box<dyn DeltaSource>> {
        let subject = self.shared.names.deltas(tenant, session);
        Ok(Box::new(Live::<Delta>::open(&self.shared, subject).await?))
    }

    async fn send_signal(&self, worker: WorkerId, signal: &Signal) -> Result<()> {
        signals::send(&self.shared, worker, signal).await
    }

    async fn subscribe_signals(&self, worker: WorkerId) -> Result<Box<dyn SignalSource>> {
        Ok(Box::new(signals::NatsSignals::open(&self.shared, worker).await?))
    }

    async fn broadcast(&self, notice: &Notice) -> Result<()> {
        notices::send(&self.shared, notice).await
    }

    async fn subscribe_notices(&self) -> Result<Box<dyn NoticeSource>> {
        Ok(Box::new(notices::NatsNotices::open(&self.shared).await?))
    }

    async fn token_counts(&self, pool: &Pool) -> Result<TokenCounts> {
        self.shared.token_counts(pool).await
    }

    fn carrier(&self) -> Option<&dyn Carrier> {
        Some(&*self.shared)
    }

    async fn ping(&self) -> Result<()> {
        self.shared.control.round_trip(&self.shared.names.nobody()).await?;
        self.shared.events.round_trip(&self.shared.names.nobody()).await?;
        // Any answer will do; its type differs between server versions, so it is not looked at.
        let answer = self.shared.jetstream.request::<_, _, serde_json::Value>("INFO", &());
        self.shared.control.bounded("JetStream", answer).await?;
        Ok(())
    }
}

/// What went wrong between us and the server, for callers that can only try again.
fn unavailable(what: &str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::unavailable(format!("NATS: {what}")).with_source(source)
}
