//! Webhooks: subscriptions of external receivers to the events of a session.

use std::{fmt, str::FromStr, time::Duration};

use sha2::{Digest as _, Sha256};

use crate::{
    Timestamp,
    error::{Code, Error, Result},
    event::{Cursor, Event},
    ids::{DeliveryId, EventId, RunId, SessionId, TenantId, WebhookId},
    limits::MAX_WEBHOOK_TYPES,
};

/// Longest pause between two attempts.
pub const MAX_RETRY_DELAY: Duration = Duration::from_secs(60 * 60);
const MAX_TYPE_BYTES: usize = 64;

/// A subscription to the events of a session, or of one run of it. The secret is not included: it is shown once, when
/// it is created.
#[derive(Clone, Debug, PartialEq)]
pub struct Webhook {
    pub id: WebhookId,
    pub tenant: TenantId,
    pub session: SessionId,
    /// If set, only this run's events are delivered, up to its end.
    pub run: Option<RunId>,
    pub url: String,
    pub types: EventFilter,
    pub state: WebhookState,
    /// Everything up to this cursor was delivered, given up or filtered out.
    pub cursor: Cursor,
    /// Failed attempts to deliver the next event.
    pub attempts: u32,
    pub next_attempt_at: Option<Timestamp>,
    /// Why the last attempt failed, until one succeeds.
    pub last_failure: Option<DeliveryFailure>,
    pub delivered_at: Option<Timestamp>,
    /// Number of dead letters, and number of those dropped for newer ones.
    pub dead_letters: u64,
    pub dropped_dead_letters: u64,
    /// Until when deliveries are also signed with the previous secret.
    pub previous_secret_until: Option<Timestamp>,
    pub created_at: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WebhookState {
    Active,
    /// Nothing is delivered until it is enabled again: the receiver said that it is gone, or it was disabled by hand.
    Disabled,
    /// Its run has ended, and all its events are delivered.
    Ended,
}

impl WebhookState {
    pub const ALL: [Self; 3] = [Self::Active, Self::Disabled, Self::Ended];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Disabled => "disabled",
            Self::Ended => "ended",
        }
    }
}

impl fmt::Display for WebhookState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for WebhookState {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|state| state.as_str() == text);
        found.ok_or_else(|| Error::invalid("state", "expected active, disabled or ended"))
    }
}

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryFailure {
    /// The HTTP status, if the receiver responded at all.
    pub status: Option<u16>,
    pub message: String,
}

/// An event that could not be delivered, kept for redelivery on request.
#[derive(Clone, Debug, PartialEq)]
pub struct DeadLetter {
    pub id: DeliveryId,
    pub webhook: WebhookId,
    pub event: Event,
    pub attempts: u32,
    pub failure: DeliveryFailure,
    /// When it was given up.
    pub died_at: Timestamp,
    /// When it is tried next, if redelivery was requested.
    pub next_attempt_at: Option<Timestamp>,
}

/// The id under which an event is delivered to a webhook. It is the same for all attempts and redeliveries, so that
/// receivers can deduplicate, and differs between webhooks, which may share a receiver.
#[must_use]
pub fn delivery_id(webhook: WebhookId, event: EventId) -> DeliveryId {
    let mut hash = Sha256::new();
    hash.update(webhook.as_uuid().as_bytes());
    hash.update(event.as_uuid().as_bytes());
    let hash: [u8; 32] = hash.finalize().into();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash[..16]);
    DeliveryId::from_uuid(uuid::Builder::from_custom_bytes(bytes).into_uuid())
}

/// Which event types a webhook receives: exact names, or all of a kind (`run.*`). Empty means all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventFilter(Vec<String>);

impl EventFilter {
    pub fn new(types: Vec<String>) -> Result<Self> {
        if types.len() > MAX_WEBHOOK_TYPES {
            let message = format!("{} types, at most {MAX_WEBHOOK_TYPES} are allowed", types.len());
            return Err(Error::new(Code::TooLarge, message).at("types"));
        }
        for (index, name) in types.iter().enumerate() {
            if !is_type_pattern(name) {
                let message =
                    "expected the name of an event such as run.completed, or of a kind such as run.*";
                return Err(Error::invalid(format!("types[{index}]"), message));
            }
        }
        Ok(Self(types))
    }

    #[must_use]
    pub fn wants(&self, name: &str) -> bool {
        let fits = |pattern: &String| match pattern.strip_suffix('*') {
            Some(kind) => name.starts_with(kind),
            None => pattern == name,
        };
        self.0.is_empty() || self.0.iter().any(fits)
    }

    #[must_use]
    pub fn as_slice(&self) -> &[String] {
        &self.0
    }

    #[must_use]
    pub fn into_inner(self) -> Vec<String> {
        self.0
    }
}

/// `kind.name` or `kind.*`.
fn is_type_pattern(text: &str) -> bool {
    let word = |word: &str| {
        !word.is_empty()
            && word.bytes().all(|byte| byte.is_ascii_lowercase() || matches!(byte, b'_' | b'0'..=b'9'))
    };
    let parts = text.split_once('.');
    text.len() <= MAX_TYPE_BYTES
        && parts.is_some_and(|(kind, name)| word(kind) && (name == "*" || word(name)))
}

/// The pause before the next attempt, after `failed` of them: doubles each time, up to an hour. `chance`, from 0 to
/// 1, varies it by up to a quarter either way, so that deliveries that failed together are not retried together.
#[must_use]
pub fn retry_delay(first: Duration, failed: u32, chance: f64) -> Duration {
    let doubled = first.saturating_mul(2_u32.saturating_pow(failed.saturating_sub(1).min(31)));
    doubled.min(MAX_RETRY_DELAY).mul_f64(0.75 + chance.clamp(0.0, 1.0) / 2.0).min(MAX_RETRY_DELAY)
}

/// The signing secret. Never shown by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct WebhookSecret(Vec<u8>);

impl WebhookSecret {
    /// Length of a secret in bytes.
    pub const LEN: usize = 32;

    #[must_use]
    pub fn from_bytes(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for WebhookSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("whsec_…")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delivery_id_is_stable_per_webhook_and_event() {
        let (webhook, event) = (WebhookId::new(), EventId::new());
        assert_eq!(delivery_id(webhook, event), delivery_id(webhook, event));
        assert_ne!(delivery_id(webhook, event), delivery_id(WebhookId::new(), event));
        assert_ne!(delivery_id(webhook, event), delivery_id(webhook, EventId::new()));
    }

    #[test]
    fn filters_match_names_and_kinds() {
        let filter = |types: &[&str]| EventFilter::new(types.iter().map(|&name| name.to_owned()).collect());
        let some = filter(&["run.*", "tool.failed"]).unwrap();
        for name in ["run.completed", "run.queued", "tool.failed"] {
            assert!(some.wants(name), "{name}");
        }
        for name in ["tool.started", "session.closed", "runs.x", "run"] {
            assert!(!some.wants(name), "{name}");
        }
        assert!(EventFilter::default().wants("anything.at_all"));
        for wrong in
            ["", "*", "run", "run.", ".x", "run.c*", "Run.x", "a.b.c", "run x.y", "*.run", &"a".repeat(99)]
        {
            let error = filter(&["run.*", wrong]).unwrap_err();
            assert_eq!((error.code(), error.field()), (Code::InvalidArgument, Some("types[1]")), "{wrong}");
        }
        assert_eq!(filter(&["a.b"; MAX_WEBHOOK_TYPES + 1]).unwrap_err().code(), Code::TooLarge);
    }

    #[test]
    fn retry_delay_doubles_up_to_an_hour() {
        let first = Duration::from_secs(5);
        let middle = |failed| retry_delay(first, failed, 0.5);
        assert_eq!([1, 2, 3, 4].map(middle).map(|delay| delay.as_secs()), [5, 10, 20, 40]);
        assert_eq!(
            (middle(11), middle(12), middle(u32::MAX)),
            (MAX_RETRY_DELAY, MAX_RETRY_DELAY, MAX_RETRY_DELAY)
        );
        assert_eq!(retry_delay(first, 1, 0.0), Duration::from_millis(3750));
        assert_eq!(retry_delay(first, 1, 1.0), Duration::from_millis(6250));
        assert_eq!(retry_delay(Duration::MAX, 9, 1.0), MAX_RETRY_DELAY);
    }

    #[test]
    fn debug_output_hides_the_secret() {
        assert_eq!(format!("{:?}", WebhookSecret::from_bytes(*b"hush")), "whsec_…");
    }
}
