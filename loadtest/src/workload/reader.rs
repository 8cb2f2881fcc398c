//! Subscribers that follow a session's events and write down what they get.
//!
//! They speak the protocol themselves instead of using the client's `follow`, which would hide a repeated event.

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

use super::{fleet::Addresses, room::Rooms};
use crate::history::{EventKind, Micros, Reading, Seen, now};

const CONNECT: Duration = Duration::from_secs(2);
/// How long a server may take to accept a subscription.
const SUBSCRIBE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(100);

/// How a reader behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Habit {
    /// Reads all it can get, and reports ended runs to the driver.
    Witness,
    /// Hangs up at random and comes back, mostly to another server.
    Restless,
    /// Waits after each event.
    Slow,
}

/// The last cursor of the session, once nothing more will happen. Readers then finish what is left.
pub(crate) type Goal = watch::Receiver<Option<i64>>;

/// A subscription service that answers raw subscriptions.
#[derive(Clone, Debug)]
pub(crate) struct Subscriber {
    services: Vec<StreamServiceClient<Channel>>,
    authorization: Option<MetadataValue<Ascii>>,
}

impl Subscriber {
    /// Connections of its own to every server.
    pub(crate) fn new(addresses: &Addresses) -> anyhow::Result<Self> {
        let connect = |address: &String| {
            let endpoint = Endpoint::from_shared(address.clone())?
                .connect_timeout(CONNECT)
                .http2_keep_alive_interval(Duration::from_secs(5))
                .keep_alive_timeout(Duration::from_secs(5))
                .keep_alive_while_idle(true);
            let service = StreamServiceClient::new(endpoint.connect_lazy());
            anyhow::Ok(service.max_decoding_message_size(limits::MAX_MESSAGE_BYTES))
        };
        let services = addresses.streams.iter().map(connect).collect::<Result<Vec<_>, _>>()?;
        anyhow::ensure!(!services.is_empty(), "there is no stream service to read from");
        let header = |key: &String| format!("Bearer {key}").parse().context("the API key is no header");
        let authorization = addresses.api_key.as_ref().map(header).transpose()?;
        Ok(Self { services, authorization })
    }

    /// Subscribes at one of the servers, chosen by `turn`.
    pub(crate) async fn subscribe(
        &self,
        turn: usize,
        session: &str,
        after_cursor: i64,
    ) -> Result<Streaming<v1::SubscribeResponse>, Status> {
        let mut service = self.services[turn % self.services.len()].clone();
        let target = Some(v1::subscribe_request::Target::Session(session.to_owned()));
        let mut request =
            Request::new(v1::SubscribeRequest { target, after_cursor, ..v1::SubscribeRequest::default() });
        if let Some(value) = &self.authorization {
            request.metadata_mut().insert("authorization", value.clone());
        }
        match timeout(SUBSCRIBE, service.subscribe(request)).await {
            Ok(answer) => answer.map(tonic::Response::into_inner),
            Err(_) => Err(Status::deadline_exceeded("no answer to a subscription")),
        }
    }
}

/// What is noted of an event.
pub(crate) fn seen(event: &v1::Event) -> Seen {
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
    Seen { cursor: event.cursor, kind, run: event.run_id.as_str().into(), at, received: now() }
}

/// A reader and its session.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) habit: Habit,
    pub(crate) subscriber: Subscriber,
    pub(crate) session: usize,
    pub(crate) rooms: Arc<Rooms>,
    pub(crate) goal: Goal,
    /// When it begins.
    pub(crate) delay: Duration,
    pub(crate) rng: StdRng,
    pub(crate) reading: Reading,
}

impl Reader {
    /// Reads until the goal is reached, or `patience` is over after it was set.
    pub(crate) async fn run(mut self, patience: Duration) -> Reading {
        let mut turn = self.rng.random_range(0..1000);
        tokio::select! {
            () = sleep(self.delay) => {}
            _ = self.goal.wait_for(Option::is_some) => {}
        }
        // Half of those who come late want no history.
        if !self.delay.is_zero() && self.rng.random_bool(0.5) {
            self.reading.after = self.rooms.cursor(self.session);
        }
        let give_up = async |mut goal: Goal| {
            let is_set = goal.wait_for(Option::is_some).await.is_ok();
            // A driver that is gone wants no reading at all.
            if is_set {
                sleep(patience).await;
            }
        };
        let mut late = std::pin::pin!(give_up(self.goal.clone()));
        while !self.is_done() {
            turn += 1;
            tokio::select! {
                () = self.once(turn) => {}
                () = &mut late => break,
            }
        }
        self.reading
    }

    fn cursor(&self) -> i64 {
        self.reading.seen.last().map_or(self.reading.after, |seen| seen.cursor)
    }

    fn is_done(&self) -> bool {
        self.goal.borrow().is_some_and(|last| self.cursor() >= last)
    }

    /// One subscription, to its end.
    async fn once(&mut self, turn: usize) {
        let session = self.reading.session.clone();
        let mut events = match self.subscriber.subscribe(turn, &session, self.cursor()).await {
            Ok(events) => events,
            Err(status) => {
                if status.code() == tonic::Code::OutOfRange {
                    self.reading.refused.push(status.message().to_owned());
                }
                sleep(PAUSE).await;
                return;
            }
        };
        let hang_up = Instant::now() + Duration::from_millis(self.rng.random_range(50..4000));
        let mut goal = self.goal.clone();
        loop {
            let hurried = goal.borrow_and_update().is_some();
            let restless = self.habit == Habit::Restless && !hurried;
            tokio::select! {
                event = events.message() => match event {
                    Ok(Some(v1::SubscribeResponse { event: Some(event), .. })) => self.take(&event),
                    Ok(Some(v1::SubscribeResponse { event: None, .. })) => {}
                    Ok(None) | Err(_) => break,
                },
                () = tokio::time::sleep_until(hang_up), if restless => return,
                changed = goal.changed(), if !hurried => if changed.is_err() { return },
            }
            if self.is_done() {
                return;
            }
            if self.habit == Habit::Slow && !hurried {
                sleep(Duration::from_millis(self.rng.random_range(1..80))).await;
            }
        }
        sleep(PAUSE).await;
    }

    fn take(&mut self, event: &v1::Event) {
        let seen = seen(event);
        if self.habit == Habit::Witness {
            self.rooms.reached(self.session, seen.cursor);
            if matches!(seen.kind, EventKind::Ended(_)) {
                self.rooms.ended(self.session, &seen.run);
            }
        }
        self.reading.seen.push(seen);
    }
}

/// A random generator of its own for each reader.
pub(crate) fn rng(seed: u64, reader: usize) -> StdRng {
    StdRng::seed_from_u64(seed.wrapping_add(0x7ead).rotate_left(17) ^ reader as u64)
}
