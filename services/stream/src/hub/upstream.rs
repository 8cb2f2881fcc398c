//! The task that listens to one session for all its readers.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use remuda_domain::{Code, Cursor, Event, WorkerId, event::Delta, worker::Signal};
use remuda_transport::{DeltaSource, EventSource};
use tokio::time::{Instant, sleep_until};

use super::{
    Inner,
    channel::{Channel, Said, Standing, lock},
    replay,
};
use crate::shared::Shared;

/// A source that ended, or could not be opened, is opened again this long after the last try, at the earliest.
const REOPEN_PACE: Duration = Duration::from_secs(1);
/// It is asked for what is missing of a message no more often than this.
const ASK_PACE: Duration = Duration::from_secs(1);
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LONGEST_RETRY: Duration = Duration::from_secs(2);
/// Later than anything that is waited for.
const NEVER: Duration = Duration::from_secs(24 * 60 * 60);

pub(super) struct Upstream {
    hub: Arc<Inner>,
    channel: Arc<Channel>,
    events: Option<Box<dyn EventSource>>,
    deltas: Option<Box<dyn DeltaSource>>,
    /// The session is known to exist.
    exists: bool,
    next_events: Instant,
    next_deltas: Instant,
    /// The newest cursor that was heard of.
    heard: Cursor,
    /// What is missing could not be read, and is tried again then.
    retry: Option<(Instant, Duration)>,
    /// Nobody reads any more, and it ends then.
    linger: Option<Instant>,
    /// The owner is to be asked what is being said, once it is known who that is.
    asks: bool,
    next_ask: Instant,
}

/// What the task has to do next.
enum Turn {
    Look,
    Events(Option<Vec<Event>>),
    Deltas(Option<Vec<Delta>>),
    Over,
}

impl Upstream {
    pub(super) fn new(hub: Arc<Inner>, channel: Arc<Channel>) -> Self {
        let now = Instant::now();
        Self {
            hub,
            channel,
            events: None,
            deltas: None,
            exists: false,
            next_events: now,
            next_deltas: now,
            heard: 0,
            retry: None,
            linger: None,
            asks: false,
            next_ask: now,
        }
    }

    /// Listens until a little after the last reader has gone, or the session has.
    pub(super) async fn run(mut self) {
        self.hub.look_soon(self.channel.key);
        loop {
            match self.turn().await {
                Turn::Over => return self.end(Standing::Closed),
                Turn::Look => {}
                Turn::Events(Some(events)) => self.hear_events(events),
                Turn::Events(None) => self.events = None,
                Turn::Deltas(Some(deltas)) => self.hear_deltas(deltas),
                Turn::Deltas(None) => self.deltas = None,
            }
            let said = lock(&self.channel.said).take();
            match said {
                Some(Said::Gone) => return self.end(Standing::NoSession),
                Some(Said::End(end)) => self.learn(end.last_cursor, end.owner),
                None => {}
            }
            self.listen().await;
            if !self.fill().await {
                return self.end(Standing::NoSession);
            }
            if self.is_left() {
                return;
            }
        }
    }

    /// Waits for something to do. What the store says and events go before pieces, which may be many.
    async fn turn(&mut self) -> Turn {
        let next_time = self.next_time();
        let Self { hub, channel, events, deltas, .. } = self;
        let events = async {
            match events {
                Some(source) => source.next().await,
                None => std::future::pending().await,
            }
        };
        let deltas = async {
            match deltas {
                Some(source) => source.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = hub.over.cancelled() => Turn::Over,
            () = channel.stirred.notified() => Turn::Look,
            events = events => Turn::Events(events),
            deltas = deltas => Turn::Deltas(deltas),
            () = sleep_until(next_time) => Turn::Look,
            () = hub.stop.cancelled(), if channel.users.load(Ordering::Acquire) == 0 => Turn::Look,
        }
    }

    fn next_time(&self) -> Instant {
        let no_events = self.exists && self.events.is_none();
        let wants_deltas = self.channel.wants_deltas.load(Ordering::Acquire);
        let no_deltas = self.exists && self.deltas.is_none() && wants_deltas;
        let times = [
            self.linger,
            self.retry.map(|(at, _)| at),
            no_events.then_some(self.next_events),
            no_deltas.then_some(self.next_deltas),
        ];
        times.into_iter().flatten().min().unwrap_or_else(|| Instant::now() + NEVER)
    }

    fn hear_events(&mut self, events: Vec<Event>) {
        self.hub.meters.heard(&events);
        let origin = self.events.as_ref().and_then(|source| source.origin());
        if let Some(delivery) = origin.and_then(|origin| remuda_trace::delivery(origin, &events)) {
            remuda_telemetry::spans::emit(delivery);
        }
        self.heard = events.iter().map(|event| event.cursor).fold(self.heard, Cursor::max);
        if self.channel.standing() == Standing::Live {
            // What is missing before them is read next.
            self.channel.push_events(events.into_iter().map(|event| Arc::new(Shared::new(event))));
        }
    }

    fn hear_deltas(&mut self, deltas: Vec<Delta>) {
        if self.channel.push_deltas(deltas) {
            self.ask_to_tell_again();
        }
    }

    /// Takes what the store says.
    fn learn(&mut self, last: Cursor, owner: Option<WorkerId>) {
        self.heard = self.heard.max(last);
        if !self.exists {
            // Now that there is something to listen to: what comes before is seen by the next look.
            self.exists = true;
            return;
        }
        if self.channel.standing() == Standing::Opening {
            self.channel.go_live(last);
        }
        if std::mem::take(&mut self.asks)
            && let Some(owner) = owner
        {
            lock(&self.channel.state).speech.note_asked();
            let (transport, session) = (Arc::clone(&self.hub.transport), self.channel.key.1);
            self.hub.tasks.spawn(async move {
                if let Err(error) = transport.send_signal(owner, &Signal::TellAgain { session }).await {
                    tracing::debug!(%session, error = error.chain(), "what is being said stays unknown");
                }
            });
        }
    }

    /// Opens the sources that are missing. Listening comes before looking: what happens in between is seen by one of them.
    async fn listen(&mut self) {
        let (now, (tenant, session)) = (Instant::now(), self.channel.key);
        if !self.exists {
            return;
        }
        if self.events.is_none() && self.next_events <= now {
            self.next_events = now + REOPEN_PACE;
            match self.hub.transport.subscribe_events(tenant, session).await {
                Ok(source) => self.events = Some(source),
                // Until it can be, the store is looked at.
                Err(error) => tracing::debug!(%session, error = error.chain(), "no live events for now"),
            }
            self.hub.look_soon(self.channel.key);
        }
        let wants_deltas = self.channel.wants_deltas.load(Ordering::Acquire);
        if wants_deltas && self.deltas.is_none() && self.next_deltas <= now {
            self.next_deltas = now + REOPEN_PACE;
            match self.hub.transport.subscribe_deltas(tenant, session).await {
                Ok(source) => {
                    self.deltas = Some(source);
                    self.ask_to_tell_again();
                }
                Err(error) => tracing::debug!(%session, error = error.chain(), "no deltas for now"),
            }
            self.channel.hear_deltas();
        }
    }

    /// Something may be missing of what is being said: whoever executes the run knows it.
    fn ask_to_tell_again(&mut self) {
        let now = Instant::now();
        if !self.asks && self.next_ask <= now {
            self.asks = true;
            self.next_ask = now + ASK_PACE;
            self.hub.look_soon(self.channel.key);
        }
    }

    /// Reads what was missed, once for all readers. False if the session is gone.
    async fn fill(&mut self) -> bool {
        if self.retry.is_some_and(|(at, _)| at > Instant::now()) {
            return true;
        }
        while self.channel.standing() == Standing::Live {
            let cursor = self.channel.cursor();
            if self.heard <= cursor {
                self.retry = None;
                break;
            }
            match replay::read(&self.hub, &self.channel, cursor, |hub| &hub.fills).await {
                Ok(history) => {
                    let first = history.events.first();
                    // What is no longer kept has to be passed over.
                    self.channel.skip_to(first.map_or(history.last_cursor, |first| first.cursor - 1));
                    self.channel.push_events(history.events.iter().cloned());
                    if self.channel.cursor() == cursor {
                        // Someone else had begun to read before it happened.
                        self.try_again_later();
                        break;
                    }
                }
                Err(error) if error.code() == Code::SessionNotFound => return false,
                Err(error) => {
                    let session = self.channel.key.1;
                    tracing::warn!(%session, error = error.chain(), "events cannot be read at the moment");
                    self.try_again_later();
                    break;
                }
            }
        }
        true
    }

    fn try_again_later(&mut self) {
        let pause = self.retry.map_or(FIRST_RETRY, |(_, pause)| (pause * 2).min(LONGEST_RETRY));
        self.retry = Some((Instant::now() + pause, pause));
    }

    /// Whether nobody has read for a while; then it is over.
    fn is_left(&mut self) -> bool {
        if self.channel.users.load(Ordering::Acquire) > 0 {
            self.linger = None;
            return false;
        }
        let now = Instant::now();
        let until = *self.linger.get_or_insert(now + self.hub.options.linger);
        (until <= now || self.hub.stop.is_cancelled()) && self.hub.close_unused(&self.channel)
    }

    fn end(&self, standing: Standing) {
        self.hub.close(&self.channel);
        self.channel.stand(standing);
    }
}
