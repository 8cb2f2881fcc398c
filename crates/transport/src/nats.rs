//! The transport over NATS: tokens in a JetStream work queue, everything else over core NATS.
//!
//! It uses two connections: one for tokens and signals, one for events and deltas. So a flood of events cannot delay
//! the acks that keep a token with its worker. Every wait has a timeout: while disconnected, the client library would
//! otherwise queue commands and then block forever.

mod auth;
mod connection;
mod credentials;
mod end_notices;
pub(crate) mod envelope;
mod grants;
mod live_events;
mod messages;
mod open_pulls;
mod options;
mod permissions;
mod provision;
mod session_tokens;
mod signals;
mod stream_settings;
mod subjects;
mod version;

use std::{fmt, sync::Arc, time::Duration};

use async_nats::jetstream::{self, context::ContextBuilder};
use async_trait::async_trait;
use bytes::Bytes;
use remuda_domain::{
    Appended, ControlPlaneId, Event, Pool, SessionId, TenantId, WorkerId,
    bus::BusSecret,
    error::{Error, Result},
    event::Delta,
    logs::Notice,
    run::RunEndNotice,
    trace::TraceContext,
    worker::Signal,
};
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

pub use self::{
    auth::NatsAuth,
    options::NatsOptions,
    provision::{ConsumerReport, NatsReport},
};
use self::{
    connection::Connection,
    envelope::{Envelope, Kind},
    live_events::{LiveSource, SharedJson},
    messages::Messages,
    subjects::Subjects,
};
use crate::{
    bus_signing::BusSigning,
    meters::Meters,
    traits::{
        DeltaSource, EndNoticeSource, EventSource, GrantTransport, NoticeSource, Published, SignalSource,
        TokenCounts, TokenSource, Transport,
    },
};

/// Tokens, events and signals over NATS. Clones share the connections.
///
/// In a cluster a new subscription takes a moment to reach every server. A reader of events that must not miss any
/// also polls the store from time to time.
#[derive(Clone)]
pub struct Nats {
    shared: Arc<Shared>,
}

struct Shared {
    options: NatsOptions,
    subjects: Subjects,
    control: Connection,
    events: Connection,
    envelope: Arc<Envelope>,
    jetstream: jetstream::Context,
    /// Lets one task at a time repair a wiped server; the others find it repaired.
    repair: Semaphore,
    ends: end_notices::Outbox,
    /// Puts back tokens that arrive for dropped sources, reads subscriptions, and publishes end notices.
    tasks: TaskTracker,
    meters: Meters,
}

impl Nats {
    /// Connects without signing messages or checking signatures. Call [`Nats::provision`] before the first use.
    pub async fn connect(options: NatsOptions) -> Result<Self> {
        Self::open(options, None).await
    }

    /// Like [`connect`](Self::connect), with signed messages.
    pub async fn connect_signed(options: NatsOptions, signing: BusSigning) -> Result<Self> {
        Self::open(options, Some(signing)).await
    }

    /// Connects to the servers and checks their version.
    async fn open(options: NatsOptions, signing: Option<BusSigning>) -> Result<Self> {
        let subjects = Subjects::new(&options.prefix)?;
        options.check()?;
        let (control, events) = tokio::try_join!(
            Connection::connect("remuda-control", &options),
            Connection::connect("remuda-events", &options)
        )?;
        version::check(&control.version(), options.replicas)?;
        let jetstream =
            ContextBuilder::new().timeout(options.request_timeout).build(control.client().clone());
        let tasks = TaskTracker::new();
        let envelope = Envelope::new(signing, tasks.clone()).await?;
        let shared = Shared {
            options,
            subjects,
            control,
            events,
            envelope: Arc::new(envelope),
            jetstream,
            repair: Semaphore::new(1),
            ends: end_notices::Outbox::default(),
            tasks,
            meters: Meters::default(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Waits until tokens of dropped sources are put back (some seconds) and everything sent has left this process.
    /// The caller drops its sources first, and sets a timeout.
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
        let published = session_tokens::publish(&self.shared, pool, tenant, session, origin).await;
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
        session_tokens::discard(&self.shared, pool, tenant, session, older_than).await
    }

    async fn orphaned_tokens(&self) -> Result<u64> {
        Ok(self.inspect().await?.orphans)
    }

    async fn repair(&self) -> Result<Vec<String>> {
        Nats::repair(self).await
    }

    async fn tokens(&self, pool: &Pool) -> Result<Box<dyn TokenSource>> {
        Ok(Box::new(session_tokens::NatsTokens::new(Arc::clone(&self.shared), pool.clone())))
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
        let text = events.json().map(|json| Bytes::from_owner(SharedJson(Arc::clone(json))));
        live_events::publish(
            &self.shared,
            self.shared.subjects.events(tenant, session),
            events,
            text,
            origin,
        )
        .await;
    }

    async fn subscribe_events(&self, tenant: TenantId, session: SessionId) -> Result<Box<dyn EventSource>> {
        let subject = self.shared.subjects.events(tenant, session);
        Ok(Box::new(LiveSource::<Event>::subscribe(&self.shared, Kind::Events, subject).await?))
    }

    async fn subscribe_events_unconfirmed(
        &self,
        tenant: TenantId,
        session: SessionId,
    ) -> Result<Box<dyn EventSource>> {
        let subject = self.shared.subjects.events(tenant, session);
        Ok(Box::new(LiveSource::<Event>::subscribe_unconfirmed(&self.shared, Kind::Events, subject).await?))
    }

    fn notify_end(&self, plane: ControlPlaneId, notice: RunEndNotice) {
        end_notices::notify(&self.shared, plane, notice);
    }

    async fn subscribe_end_notices(&self, plane: ControlPlaneId) -> Result<Box<dyn EndNoticeSource>> {
        let subject = self.shared.subjects.ends(plane);
        Ok(Box::new(Messages::<Vec<RunEndNotice>>::subscribe(&self.shared, subject).await?))
    }

    async fn publish_deltas(&self, tenant: TenantId, session: SessionId, deltas: &[Delta]) {
        live_events::publish(&self.shared, self.shared.subjects.deltas(tenant, session), deltas, None, None)
            .await;
    }

    async fn subscribe_deltas(&self, tenant: TenantId, session: SessionId) -> Result<Box<dyn DeltaSource>> {
        let subject = self.shared.subjects.deltas(tenant, session);
        Ok(Box::new(LiveSource::<Delta>::subscribe(&self.shared, Kind::Deltas, subject).await?))
    }

    async fn send_signal(&self, worker: WorkerId, signal: &Signal) -> Result<()> {
        signals::send(&self.shared, worker, signal).await
    }

    async fn subscribe_signals(&self, worker: WorkerId) -> Result<Box<dyn SignalSource>> {
        let subject = self.shared.subjects.control(worker);
        Ok(Box::new(Messages::<Signal>::subscribe(&self.shared, subject).await?))
    }

    async fn broadcast(&self, notice: &Notice) -> Result<()> {
        signals::broadcast(&self.shared, notice).await
    }

    async fn subscribe_notices(&self) -> Result<Box<dyn NoticeSource>> {
        let subject = self.shared.subjects.notices();
        Ok(Box::new(Messages::<Notice>::subscribe(&self.shared, subject).await?))
    }

    async fn token_counts(&self, pool: &Pool) -> Result<TokenCounts> {
        self.shared.token_counts(pool).await
    }

    fn grant_transport(&self) -> Option<&dyn GrantTransport> {
        Some(&*self.shared)
    }

    fn sign_as(&self, worker: WorkerId, secret: &BusSecret) {
        self.shared.envelope.sign_as(worker, secret);
    }

    async fn ping(&self) -> Result<()> {
        self.shared.control.round_trip(&self.shared.subjects.no_responders()).await?;
        self.shared.events.round_trip(&self.shared.subjects.no_responders()).await?;
        // Any response will do. Its type differs between server versions, so it is not inspected.
        let response = self.shared.jetstream.request::<_, _, serde_json::Value>("INFO", &());
        self.shared.control.bounded("JetStream", response).await?;
        Ok(())
    }
}

/// An error of the server or the connection. All a caller can do is retry.
fn unavailable(what: &str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::unavailable(format!("NATS: {what}")).with_source(source)
}
