//! Metrics of tokens, and of rejected messages.

use remuda_domain::{Pool, error::Result};
use remuda_telemetry::metrics::{
    self, Counter, KeyValue,
    registry::{BUS_REJECTED, TOKENS_DELIVERED, TOKENS_PUBLISHED, TOKENS_REDELIVERED, label},
};

use crate::traits::Published;

#[derive(Debug)]
pub(crate) struct Meters {
    published: Counter<u64>,
    delivered: Counter<u64>,
    redelivered: Counter<u64>,
}

impl Default for Meters {
    fn default() -> Self {
        Self {
            published: metrics::counter(&TOKENS_PUBLISHED),
            delivered: metrics::counter(&TOKENS_DELIVERED),
            redelivered: metrics::counter(&TOKENS_REDELIVERED),
        }
    }
}

impl Meters {
    pub(crate) fn published(&self, outcome: &Result<Published>) {
        let result = match outcome {
            Ok(Published::Stored) => "stored",
            Ok(Published::AlreadyScheduled) => "already_scheduled",
            Err(_) => "error",
        };
        self.published.add(1, &[KeyValue::new(label::RESULT, result)]);
    }

    /// Counters for the token source of one worker.
    pub(crate) fn deliveries(&self, pool: &Pool) -> Deliveries {
        let deliveries = Deliveries {
            delivered: self.delivered.clone(),
            redelivered: self.redelivered.clone(),
            pool: [KeyValue::new(label::POOL, pool.as_str().to_owned())],
        };
        // Register both metrics before the first delivery and redelivery.
        deliveries.count(0, 0);
        deliveries
    }
}

#[derive(Debug)]
pub(crate) struct Deliveries {
    delivered: Counter<u64>,
    redelivered: Counter<u64>,
    pool: [KeyValue; 1],
}

impl Deliveries {
    /// Counts tokens, and those among them that were redelivered.
    pub(crate) fn count(&self, tokens: u64, redelivered: u64) {
        self.delivered.add(tokens, &self.pool);
        self.redelivered.add(redelivered, &self.pool);
    }
}

/// Why a message on the bus was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejection {
    /// It has no proof. The sender is an earlier version, or not one of ours.
    Unsigned,
    Malformed,
    /// It was sent long ago, or the clocks of the two hosts differ by more than a minute.
    Stale,
    /// The store has no such key: the worker's lease has ended, or the key has retired.
    UnknownKey,
    /// The proof is not about this message, or not made with this key.
    Altered,
    /// This subscription has received it before.
    Replayed,
    /// Its sender may not send this.
    NotAllowed,
}

impl Rejection {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Unsigned => "unsigned",
            Self::Malformed => "malformed",
            Self::Stale => "stale",
            Self::UnknownKey => "unknown_key",
            Self::Altered => "altered",
            Self::Replayed => "replayed",
            Self::NotAllowed => "not_allowed",
        }
    }
}

/// Counts rejected messages.
pub(crate) struct Rejections(Counter<u64>);

impl Default for Rejections {
    fn default() -> Self {
        Self(metrics::counter(&BUS_REJECTED))
    }
}

impl Rejections {
    pub(crate) fn count(&self, kind: &'static str, rejection: Rejection) {
        self.0.add(1, &[KeyValue::new(label::KIND, kind), KeyValue::new(label::REASON, rejection.as_str())]);
    }
}
