//! The task that follows one session for all its readers.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use remuda_domain::{Code, Cursor, Event, WorkerId, event::Delta, worker::Signal};
use remuda_transport::{DeltaSource, EventSource};
use tokio::time::{Instant, sleep_until};

use super::{
    Inner,
    channel::{Channel, ChannelStatus, LookupResult},
    replay,
};
use crate::shared_event::Shared;

/// Minimum time between attempts to open a source.
const REOPEN_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum time between requests to resend missing text.
const RESEND_INTERVAL: Duration = Duration::from_secs(1);
const FIRST_RETRY: Duration = Duration::from_millis(100);
const MAX_RETRY: Duration = Duration::from_secs(2);
/// Later than any other deadline.
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
    /// The newest cursor known to exist.
    newest_known: Cursor,
    /// When to retry a failed read of missed events, and the current backoff.
    retry: Option<(Instant, Duration)>,
    /// There are no readers, and the task ends then.
    linger: Option<Instant>,
    /// A resend is to be requested from the owner, once the owner is known.
    resend_pending: bool,
    next_resend_request: Instant,
}

/// What woke the task.
enum Wakeup {
    Check,
    Events(Option<Vec<Event>>),
    Deltas(Option<Vec<Delta>>),
    Shutdown,
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
            newest_known: 0,
            retry: None,
            linger: None,
            resend_pending: false,
            next_resend_request: now,
        }
    }

    /// Runs until a little after the last reader has gone, or until the session is deleted.
    pub(super) async fn run(mut self) {
        self.hub.request_lookup(self.channel.key);
        loop {
            match self.wait().await {
                Wakeup::Shutdown => return self.end(ChannelStatus::Closed),
                Wakeup::Check => {}
                Wakeup::Events(Some(events)) => self.on_events(events),
                Wakeup::Events(None) => self.events = None,
                Wakeup::Deltas(Some(deltas)) => self.on_deltas(deltas),
                Wakeup::Deltas(None) => self.deltas = None,
            }
            let lookup_result = self.channel.lookup_result.lock().take();
            match lookup_result {
                Some(LookupResult::Gone) => return self.end(ChannelStatus::NoSession),
                Some(LookupResult::End(end)) => self.on_lookup(end.last_cursor, end.owner),
                None => {}
            }
            self.open_sources().await;
            if !self.fill_gap().await {
                return self.end(ChannelStatus::NoSession);
            }
            if self.close_if_unused() {
                return;
            }
        }
    }

    /// Waits for something to do. Lookup results and events take precedence over deltas, which may be many.
    async fn wait(&mut self) -> Wakeup {
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
            () = hub.shutdown.cancelled() => Wakeup::Shutdown,
            () = channel.task_wake.notified() => Wakeup::Check,
            events = events => Wakeup::Events(events),
            deltas = deltas => Wakeup::Deltas(deltas),
            () = sleep_until(next_time) => Wakeup::Check,
            () = hub.stop.cancelled(), if channel.users.load(Ordering::Acquire) == 0 => Wakeup::Check,
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

    fn on_events(&mut self, events: Vec<Event>) {
        // A message that is not proven says nothing but: look.
        if events.is_empty() {
            return self.hub.request_lookup(self.channel.key);
        }
        self.hub.meters.received_live(&events);
        let origin = self.events.as_ref().and_then(|source| source.origin());
        if let Some(delivery) = origin.and_then(|origin| remuda_trace::delivery(origin, &events)) {
            remuda_telemetry::spans::emit(delivery);
        }
        self.newest_known = events.iter().map(|event| event.cursor).fold(self.newest_known, Cursor::max);
        if self.channel.status() == ChannelStatus::Live {
            // Events missing before these are read next.
            self.channel.push_events(events.into_iter().map(|event| Arc::new(Shared::new(event))));
        }
    }

    fn on_deltas(&mut self, deltas: Vec<Delta>) {
        if self.channel.push_deltas(deltas) {
            self.request_resend();
        }
    }

    /// Applies a lookup result.
    fn on_lookup(&mut self, last: Cursor, owner: Option<WorkerId>) {
        self.newest_known = self.newest_known.max(last);
        if !self.exists {
            // Subscribe now; the next lookup covers what happened before the subscription.
            self.exists = true;
            return;
        }
        if self.channel.status() == ChannelStatus::Opening {
            self.channel.go_live(last);
        }
        if std::mem::take(&mut self.resend_pending)
            && let Some(owner) = owner
        {
            self.channel.state.lock().partial_messages.resend_requested();
            let (transport, session) = (Arc::clone(&self.hub.transport), self.channel.key.1);
            self.hub.tasks.spawn(async move {
                if let Err(error) = transport.send_signal(owner, &Signal::ResendDeltas { session }).await {
                    tracing::debug!(%session, error = error.chain(), "cannot request a resend of deltas");
                }
            });
        }
    }

    /// Opens missing sources. The subscription precedes the lookup, so one of them sees every event.
    async fn open_sources(&mut self) {
        let (now, (tenant, session)) = (Instant::now(), self.channel.key);
        if !self.exists {
            return;
        }
        if self.events.is_none() && self.next_events <= now {
            self.next_events = now + REOPEN_INTERVAL;
            match self.hub.transport.subscribe_events(tenant, session).await {
                Ok(source) => self.events = Some(source),
                // Until it succeeds, periodic lookups find new events.
                Err(error) => {
                    tracing::debug!(%session, error = error.chain(), "cannot subscribe to events; retrying")
                }
            }
            self.hub.request_lookup(self.channel.key);
        }
        let wants_deltas = self.channel.wants_deltas.load(Ordering::Acquire);
        if wants_deltas && self.deltas.is_none() && self.next_deltas <= now {
            self.next_deltas = now + REOPEN_INTERVAL;
            match self.hub.transport.subscribe_deltas(tenant, session).await {
                Ok(source) => {
                    self.deltas = Some(source);
                    self.request_resend();
                }
                Err(error) => {
                    tracing::debug!(%session, error = error.chain(), "cannot subscribe to deltas; retrying")
                }
            }
            self.channel.set_deltas_subscribed();
        }
    }

    /// Text of a message under way may be missing: the worker that executes the run has it.
    fn request_resend(&mut self) {
        let now = Instant::now();
        if !self.resend_pending && self.next_resend_request <= now {
            self.resend_pending = true;
            self.next_resend_request = now + RESEND_INTERVAL;
            self.hub.request_lookup(self.channel.key);
        }
    }

    /// Reads missed events, once for all readers. `false` if the session is deleted.
    async fn fill_gap(&mut self) -> bool {
        if self.retry.is_some_and(|(at, _)| at > Instant::now()) {
            return true;
        }
        while self.channel.status() == ChannelStatus::Live {
            let cursor = self.channel.cursor();
            if self.newest_known <= cursor {
                self.retry = None;
                break;
            }
            match replay::read(&self.hub, &self.channel, cursor, |hub| &hub.gap_reads).await {
                Ok(history) => {
                    let first = history.events.first();
                    // Trimmed events are skipped.
                    self.channel.skip_to(first.map_or(history.last_cursor, |first| first.cursor - 1));
                    self.channel.push_events(history.events.iter().cloned());
                    if self.channel.cursor() == cursor {
                        // The shared read started before the event was written.
                        self.schedule_retry();
                        break;
                    }
                }
                Err(error) if error.code() == Code::SessionNotFound => return false,
                Err(error) => {
                    let session = self.channel.key.1;
                    tracing::warn!(%session, error = error.chain(), "cannot read missed events; retrying");
                    self.schedule_retry();
                    break;
                }
            }
        }
        true
    }

    fn schedule_retry(&mut self) {
        let pause = self.retry.map_or(FIRST_RETRY, |(_, pause)| (pause * 2).min(MAX_RETRY));
        self.retry = Some((Instant::now() + pause, pause));
    }

    /// Closes the channel if it has had no readers for a while. Returns whether it did.
    fn close_if_unused(&mut self) -> bool {
        if self.channel.users.load(Ordering::Acquire) > 0 {
            self.linger = None;
            return false;
        }
        let now = Instant::now();
        let until = *self.linger.get_or_insert(now + self.hub.options.linger);
        (until <= now || self.hub.stop.is_cancelled()) && self.hub.close_unused(&self.channel)
    }

    fn end(&self, status: ChannelStatus) {
        self.hub.close(&self.channel);
        self.channel.set_status(status);
    }
}
