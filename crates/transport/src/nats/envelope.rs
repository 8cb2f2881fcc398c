//! The envelope of every message between services on the bus.
//!
//! All of them pass [`Envelope::seal`] before they are published and [`Envelope::open`] when they are received. The
//! payload is the message itself; what is said *about* it stands in headers, which versions that do not know them
//! ignore: the trace context, and the proof of who sent the message.
//!
//! A message is proven if a key that the store has signed it for this subject, within the last minute, and if this
//! subscription has not received it before. Everything else is rejected: it is counted, and at most a hint to read the
//! store ([`Kind::takes_hints`]). Session tokens are always hints, so they carry no proof.

mod keyring;
pub(crate) mod proof;
mod rate_limit;
mod replay_window;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use async_nats::{HeaderMap, Message, header::HeaderName};
use bytes::Bytes;
use remuda_domain::{
    WorkerId,
    bus::{BusSecret, BusSigner},
    error::Result,
    trace::TraceContext,
};
use tokio_util::task::TaskTracker;

pub(super) use self::replay_window::ReplayWindow;
use self::{
    keyring::Keyring,
    proof::{Claims, Proof, Signed},
    rate_limit::RateLimit,
};
use crate::{
    bus_signing::{BusSigning, Signing},
    meters::{Rejection, Rejections},
};

const TRACEPARENT: &str = "traceparent";
const PROOF: HeaderName = HeaderName::from_static("Remuda-Proof");
/// Bytes of the headers, at most. They count towards the maximum size of a message.
pub(super) const MAX_HEADERS: usize = 256;

/// How far the clocks of two hosts may be apart, and how long a message may take.
const MAX_AGE: Duration = Duration::from_secs(60);
/// Unproven messages that make this process read the store. Real messages only arrive unproven while an installation
/// is upgraded, and what is dropped then is only found later.
const HINTS_PER_SECOND: u32 = 200;
/// Log lines about rejected messages.
const LOGS_PER_SECOND: u32 = 1;

/// Signs and checks messages.
pub(super) struct Envelope {
    /// `None` if messages are neither signed nor checked.
    keyring: Option<Arc<Keyring>>,
    signing: Signing,
    /// Distinguishes this process from others with the same key.
    process: u64,
    count: AtomicU64,
    hints: RateLimit,
    logs: RateLimit,
    rejections: Rejections,
    /// Runs the reads of keys.
    tasks: TaskTracker,
}

/// A message to publish.
pub(super) struct Sealed {
    /// `None` if there is nothing to say: messages without headers are cheaper.
    pub(super) headers: Option<HeaderMap>,
    pub(super) payload: Bytes,
}

/// A received message.
pub(super) struct Opened {
    /// `None` if the message is not proven: it is a hint.
    pub(super) sender: Option<Sender>,
    pub(super) payload: Bytes,
    /// The trace context that it was published with.
    pub(super) origin: Option<TraceContext>,
}

/// Who sent a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sender {
    /// A control plane or a stream service.
    Installation,
    Worker(WorkerId),
    /// The message is not signed, and signatures are not required.
    Assumed,
}

/// The kinds of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Events,
    Deltas,
    Ends,
    Signals,
    Offers,
    Grants,
    Notices,
}

impl Kind {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Events => "events",
            Self::Deltas => "deltas",
            Self::Ends => "ends",
            Self::Signals => "signals",
            Self::Offers => "offers",
            Self::Grants => "grants",
            Self::Notices => "notices",
        }
    }

    /// Whether an unproven message is a reason to read the store. What the other kinds say is not in the store.
    const fn takes_hints(self) -> bool {
        match self {
            Self::Events | Self::Ends | Self::Signals | Self::Grants => true,
            Self::Deltas | Self::Offers | Self::Notices => false,
        }
    }
}

impl Envelope {
    /// Reads the keys, unless messages are neither signed nor checked.
    pub(super) async fn new(signing: Option<BusSigning>, tasks: TaskTracker) -> Result<Self> {
        let (signing, keyring) = match signing {
            None | Some(BusSigning { signing: Signing::Off, .. }) => (Signing::Off, None),
            Some(BusSigning { signing, signs_as, keys }) => {
                (signing, Some(Arc::new(Keyring::open(keys, signs_as).await?)))
            }
        };
        Ok(Self {
            keyring,
            signing,
            process: rand::random(),
            count: AtomicU64::new(0),
            hints: RateLimit::per_second(HINTS_PER_SECOND),
            logs: RateLimit::per_second(LOGS_PER_SECOND),
            rejections: Rejections::default(),
            tasks,
        })
    }

    /// Signs with the key of this worker from now on.
    pub(super) fn sign_as(&self, worker: WorkerId, secret: &BusSecret) {
        self.keyring.iter().for_each(|keyring| keyring.set_worker(worker, secret));
    }

    pub(super) fn seal(&self, subject: &str, payload: Bytes, origin: Option<TraceContext>) -> Sealed {
        let Sealed { headers, payload } = Sealed::hint(payload, origin);
        let Some(own) = self.keyring().and_then(|keyring| keyring.own()) else {
            return Sealed { headers, payload };
        };
        let mut headers = headers.unwrap_or_default();
        let claims = Claims {
            signer: own.signer,
            process: self.process,
            sent_at: milliseconds(SystemTime::now()),
            count: self.count.fetch_add(1, Ordering::Relaxed),
        };
        let signed = Signed { subject, trace: trace(Some(&headers)), payload: &payload };
        let proof = claims.prove(&own.key, signed);
        headers.insert(PROOF, proof);
        Sealed { headers: Some(headers), payload }
    }

    /// Opens a message of a subscription. `None` if it is not proven and cannot be a hint.
    pub(super) async fn open(
        &self,
        kind: Kind,
        message: Message,
        received: &mut ReplayWindow,
    ) -> Option<Opened> {
        match self.verify(&message, received).await {
            Ok(sender) => {
                let origin = origin(message.headers.as_ref());
                Some(Opened { sender: Some(sender), payload: message.payload, origin })
            }
            Err(rejection) => {
                self.reject(kind, rejection, &message.subject);
                let hint = Opened { sender: None, payload: message.payload, origin: None };
                (kind.takes_hints() && self.hints.allow()).then_some(hint)
            }
        }
    }

    /// Whether to log something that anybody on the bus can cause.
    pub(super) fn may_log(&self) -> bool {
        self.logs.allow()
    }

    /// Counts a message that is rejected.
    pub(super) fn reject(&self, kind: Kind, rejection: Rejection, subject: &str) {
        self.rejections.count(kind.as_str(), rejection);
        if self.may_log() {
            tracing::warn!(
                subject,
                reason = rejection.as_str(),
                "message on the bus is not proven; it is at most a hint"
            );
        }
    }

    async fn verify(&self, message: &Message, received: &mut ReplayWindow) -> Result<Sender, Rejection> {
        let Some(keyring) = self.keyring() else { return Ok(Sender::Assumed) };
        let headers = message.headers.as_ref();
        let Some(text) = headers.and_then(|headers| headers.get(PROOF)) else {
            return if self.signing == Signing::Require {
                Err(Rejection::Unsigned)
            } else {
                Ok(Sender::Assumed)
            };
        };
        let proof = Proof::parse(text.as_str()).ok_or(Rejection::Malformed)?;
        let (now, max_age) = (milliseconds(SystemTime::now()), millis(MAX_AGE));
        if now.abs_diff(proof.claims.sent_at) > max_age {
            return Err(Rejection::Stale);
        }
        let key = keyring.find(proof.claims.signer).await.ok_or(Rejection::UnknownKey)?;
        let signed = Signed { subject: &message.subject, trace: trace(headers), payload: &message.payload };
        if !proof.verify(&key, signed) {
            return Err(Rejection::Altered);
        }
        if !received.accept(&proof.claims, now.saturating_sub(max_age)) {
            return Err(Rejection::Replayed);
        }
        Ok(match proof.claims.signer {
            BusSigner::Installation(_) => Sender::Installation,
            BusSigner::Worker(worker) => Sender::Worker(worker),
        })
    }

    /// The keys, which are read again if they are old.
    fn keyring(&self) -> Option<&Keyring> {
        let keyring = self.keyring.as_ref()?;
        if keyring.is_due() {
            let keyring = Arc::clone(keyring);
            self.tasks.spawn(async move { keyring.refresh().await });
        }
        Some(keyring)
    }
}

impl fmt::Debug for Envelope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Envelope").field("signing", &self.signing).finish_non_exhaustive()
    }
}

impl Sealed {
    /// A message without a proof, for receivers that check in the store whatever it says.
    pub(super) fn hint(payload: Bytes, origin: Option<TraceContext>) -> Self {
        let headers = origin.map(|origin| {
            let mut headers = HeaderMap::new();
            headers.insert(TRACEPARENT, origin.to_string().as_str());
            headers
        });
        Self { headers, payload }
    }
}

/// The trace context of a message, proven or not. An invalid one is ignored: a message is worth more than its trace.
pub(super) fn origin(headers: Option<&HeaderMap>) -> Option<TraceContext> {
    trace(headers).parse().ok()
}

fn trace(headers: Option<&HeaderMap>) -> &str {
    headers.and_then(|headers| headers.get(TRACEPARENT)).map_or("", |value| value.as_str())
}

/// Milliseconds since 1970.
fn milliseconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, millis)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
