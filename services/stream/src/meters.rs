//! What is measured of streams.

use std::{sync::Weak, time::SystemTime};

use remuda_domain::Event;
use remuda_telemetry::metrics::{
    self, Counter, Histogram,
    registry::{STREAM_EVENTS, STREAM_LAG, STREAM_READERS, STREAM_SESSIONS, STREAM_SLOW_READERS},
};
use tokio::sync::Semaphore;

#[derive(Debug)]
pub(crate) struct Meters {
    events: Counter<u64>,
    lag: Histogram<f64>,
    slow: Counter<u64>,
}

impl Meters {
    pub(crate) fn new() -> Self {
        let slow = metrics::counter(&STREAM_SLOW_READERS);
        // So that the metric is there before the first one is too slow.
        slow.add(0, &[]);
        Self { events: metrics::counter(&STREAM_EVENTS), lag: metrics::histogram(&STREAM_LAG), slow }
    }

    pub(crate) fn gave(&self, events: usize) {
        self.events.add(events as u64, &[]);
    }

    /// Tells how old events are that came live. They came together, so the oldest speaks for them.
    pub(crate) fn heard(&self, events: &[Event]) {
        let Some(first) = events.first() else { return };
        // Clocks differ: what comes from the future is new.
        let age = SystemTime::now().duration_since(first.at.into()).unwrap_or_default();
        self.lag.record(age.as_secs_f64(), &[]);
    }

    pub(crate) fn too_slow(&self) {
        self.slow.add(1, &[]);
    }
}

/// Tells how many of these seats are taken.
#[expect(clippy::cast_precision_loss, reason = "readers are counted in thousands")]
pub(crate) fn observe_readers(seats: Weak<Semaphore>, all: usize) {
    metrics::observe(&STREAM_READERS, move |readers| {
        if let Some(seats) = seats.upgrade() {
            readers.observe(all.saturating_sub(seats.available_permits()) as f64, &[]);
        }
    });
}

/// Tells how many sessions are followed, as long as there is someone who knows.
#[expect(clippy::cast_precision_loss, reason = "sessions are counted in thousands")]
pub(crate) fn observe_sessions(count: impl Fn() -> Option<usize> + Send + Sync + 'static) {
    metrics::observe(&STREAM_SESSIONS, move |sessions| {
        if let Some(count) = count() {
            sessions.observe(count as f64, &[]);
        }
    });
}
