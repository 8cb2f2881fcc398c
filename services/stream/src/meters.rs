//! Metrics of streams.

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
        // Register the metric before the first slow reader.
        slow.add(0, &[]);
        Self { events: metrics::counter(&STREAM_EVENTS), lag: metrics::histogram(&STREAM_LAG), slow }
    }

    pub(crate) fn sent(&self, events: usize) {
        self.events.add(events as u64, &[]);
    }

    /// Records the age of live events. They arrive together, so the oldest represents them.
    pub(crate) fn received_live(&self, events: &[Event]) {
        let Some(first) = events.first() else { return };
        // Clocks differ: an event from the future has age zero.
        let age = SystemTime::now().duration_since(first.at.into()).unwrap_or_default();
        self.lag.record(age.as_secs_f64(), &[]);
    }

    pub(crate) fn too_slow(&self) {
        self.slow.add(1, &[]);
    }
}

/// Exports the number of open readers.
#[expect(clippy::cast_precision_loss, reason = "readers are counted in thousands")]
pub(crate) fn observe_readers(permits: Weak<Semaphore>, all: usize) {
    metrics::observe(&STREAM_READERS, move |readers| {
        if let Some(permits) = permits.upgrade() {
            readers.observe(all.saturating_sub(permits.available_permits()) as f64, &[]);
        }
    });
}

/// Exports the number of followed sessions, while the hub exists.
#[expect(clippy::cast_precision_loss, reason = "sessions are counted in thousands")]
pub(crate) fn observe_sessions(count: impl Fn() -> Option<usize> + Send + Sync + 'static) {
    metrics::observe(&STREAM_SESSIONS, move |sessions| {
        if let Some(count) = count() {
            sessions.observe(count as f64, &[]);
        }
    });
}
