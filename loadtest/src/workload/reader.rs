//! Subscribers that follow a session's events and record what they receive.
//!
//! They use the gRPC stream directly instead of the client's `follow`, which would hide a repeated event.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use remuda_client::terminal_state;
use remuda_domain::limits;
use remuda_proto::v1::{self, stream_service_client::StreamServiceClient};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tonic::{
    Request, Status, Streaming,
    metadata::{Ascii, MetadataValue},
    transport::{Channel, Endpoint},
};

use super::{failover::Addresses, session_tracker::SessionTracker};
use crate::observed_history::{EventKind, Micros, ObservedEvent, ReaderLog, now};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a server may take to accept a subscription.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(100);

/// How a reader behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReaderBehaviour {
    /// Reads everything as fast as it can and reports ended runs to the session tracker.
    Primary,
    /// Disconnects at random times and reconnects, usually to another server.
    Reconnecting,
    /// Waits after each event.
    Slow,
}

/// The last cursor of the session, set once no more events will come. Readers then finish.
pub(crate) type Goal = watch::Receiver<Option<i64>>;

/// Clients of all stream services.
#[derive(Clone, Debug)]
pub(crate) struct Subscriber {
    services: Vec<StreamServiceClient<Channel>>,
    authorization: Option<MetadataValue<Ascii>>,
}

impl Subscriber {
    /// Opens separate connections to every server.
    pub(crate) fn new(addresses: &Addresses) -> anyhow::Result<Self> {
        let connect = |address: &String| {
            let endpoint = Endpoint::from_shared(address.clone())?
                .connect_timeout(CONNECT_TIMEOUT)
                .http2_keep_alive_interval(Duration::from_secs(5))
                .keep_alive_timeout(Duration::from_secs(5))
                .keep_alive_while_idle(true);
            let service = StreamServiceClient::new(endpoint.connect_lazy());
            anyhow::Ok(service.max_decoding_message_size(limits::MAX_MESSAGE_BYTES))
        };
        let services = addresses.streams.iter().map(connect).collect::<Result<Vec<_>, _>>()?;
        anyhow::ensure!(!services.is_empty(), "no stream service");
        let header =
            |key: &String| format!("Bearer {key}").parse().context("the API key is not a valid header value");
        let authorization = addresses.api_key.as_ref().map(header).transpose()?;
        Ok(Self { services, authorization })
    }

    /// Subscribes at one of the servers, selected by `attempt`.
    pub(crate) async fn subscribe(
        &self,
        attempt: usize,
        session: &str,
        after_cursor: i64,
    ) -> Result<Streaming<v1::SubscribeResponse>, Status> {
        let mut service = self.services[attempt % self.services.len()].clone();
        let target = Some(v1::subscribe_request::Target::Session(session.to_owned()));
        let mut request =
            Request::new(v1::SubscribeRequest { target, after_cursor, ..v1::SubscribeRequest::default() });
        if let Some(value) = &self.authorization {
            request.metadata_mut().insert("authorization", value.clone());
        }
        match timeout(SUBSCRIBE_TIMEOUT, service.subscribe(request)).await {
            Ok(answer) => answer.map(tonic::Response::into_inner),
            Err(_) => Err(Status::deadline_exceeded("no answer to a subscription")),
        }
    }
}

/// Converts a received event.
pub(crate) fn observe(event: &v1::Event) -> ObservedEvent {
    let kind = match terminal_state(event) {
        Some(state) => EventKind::Ended(state),
        None => match event.r#type.as_str() {
            "run.started" => EventKind::Started,
            "run.handed_over" => EventKind::HandedOver,
            "run.attempt_lost" => EventKind::Lost,
            _ => EventKind::Other,
        },
    };
    let at = event.at.as_ref().map_or(0, |at| at.seconds * 1_000_000 + Micros::from(at.nanos) / 1000);
    ObservedEvent { cursor: event.cursor, kind, run: event.run_id.as_str().into(), at, received: now() }
}

/// A reader and its session.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) behaviour: ReaderBehaviour,
    pub(crate) subscriber: Subscriber,
    pub(crate) session: usize,
    pub(crate) tracker: Arc<SessionTracker>,
    pub(crate) goal: Goal,
    /// The delay of its start.
    pub(crate) delay: Duration,
    pub(crate) rng: StdRng,
    pub(crate) log: ReaderLog,
}

impl Reader {
    /// Reads until the goal is reached or `timeout_after_goal` has passed since it was set.
    pub(crate) async fn run(mut self, timeout_after_goal: Duration) -> ReaderLog {
        let mut attempt = self.rng.random_range(0..1000);
        tokio::select! {
            () = sleep(self.delay) => {}
            _ = self.goal.wait_for(Option::is_some) => {}
        }
        // Half of the late readers skip the history.
        if !self.delay.is_zero() && self.rng.random_bool(0.5) {
            self.log.after = self.tracker.cursor(self.session);
        }
        let time_out = async |mut goal: Goal| {
            let is_set = goal.wait_for(Option::is_some).await.is_ok();
            // If the sender is gone, reading ends at once.
            if is_set {
                sleep(timeout_after_goal).await;
            }
        };
        let mut late = std::pin::pin!(time_out(self.goal.clone()));
        while !self.is_done() {
            attempt += 1;
            tokio::select! {
                () = self.once(attempt) => {}
                () = &mut late => break,
            }
        }
        self.log
    }

    fn cursor(&self) -> i64 {
        self.log.events.last().map_or(self.log.after, |seen| seen.cursor)
    }

    fn is_done(&self) -> bool {
        self.goal.borrow().is_some_and(|last| self.cursor() >= last)
    }

    /// Reads one subscription to its end.
    async fn once(&mut self, attempt: usize) {
        let session = self.log.session.clone();
        let mut events = match self.subscriber.subscribe(attempt, &session, self.cursor()).await {
            Ok(events) => events,
            Err(status) => {
                if status.code() == tonic::Code::OutOfRange {
                    self.log.refused.push(status.message().to_owned());
                }
                sleep(PAUSE).await;
                return;
            }
        };
        let hang_up = Instant::now() + Duration::from_millis(self.rng.random_range(50..4000));
        let mut goal = self.goal.clone();
        loop {
            let hurried = goal.borrow_and_update().is_some();
            let reconnecting = self.behaviour == ReaderBehaviour::Reconnecting && !hurried;
            tokio::select! {
                event = events.message() => match event {
                    Ok(Some(v1::SubscribeResponse { event: Some(event), .. })) => self.record(&event),
                    Ok(Some(v1::SubscribeResponse { event: None, .. })) => {}
                    Ok(None) | Err(_) => break,
                },
                () = tokio::time::sleep_until(hang_up), if reconnecting => return,
                changed = goal.changed(), if !hurried => if changed.is_err() { return },
            }
            if self.is_done() {
                return;
            }
            if self.behaviour == ReaderBehaviour::Slow && !hurried {
                sleep(Duration::from_millis(self.rng.random_range(1..80))).await;
            }
        }
        sleep(PAUSE).await;
    }

    fn record(&mut self, event: &v1::Event) {
        let seen = observe(event);
        if self.behaviour == ReaderBehaviour::Primary {
            self.tracker.record_cursor(self.session, seen.cursor);
            if matches!(seen.kind, EventKind::Ended(_)) {
                self.tracker.record_end(self.session, &seen.run);
            }
        }
        self.log.events.push(seen);
    }
}

/// A separate random generator for each reader.
pub(crate) fn rng(seed: u64, reader: usize) -> StdRng {
    StdRng::seed_from_u64(seed.wrapping_add(0x7ead).rotate_left(17) ^ reader as u64)
}
