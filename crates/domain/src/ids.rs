//! Typed, prefixed ids: a UUIDv7 shown as `run_01h455vb4pex5vsknk084sn02q`.
//!
//! The 128 bits are written in Crockford's base 32 (26 characters, lower case). So ids sort by creation time, can be
//! selected with a double-click and are safe in URLs, NATS subjects and container labels.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

use crate::error::{Code, Error};

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const ENCODED_LEN: usize = 26;

fn encode(uuid: Uuid) -> [u8; ENCODED_LEN] {
    let mut bits = uuid.as_u128();
    let mut out = [b'0'; ENCODED_LEN];
    for slot in out.iter_mut().rev() {
        *slot = ALPHABET[(bits & 31) as usize];
        bits >>= 5;
    }
    out
}

fn decode(text: &str) -> Option<Uuid> {
    let bytes = text.as_bytes();
    // 26 characters hold 130 bits: a first character above '7' would overflow.
    if bytes.len() != ENCODED_LEN || bytes[0] > b'7' {
        return None;
    }
    let mut bits = 0u128;
    for byte in bytes {
        let digit = ALPHABET.iter().position(|symbol| symbol == byte)?;
        bits = (bits << 5) | digit as u128;
    }
    Some(Uuid::from_u128(bits))
}

macro_rules! typed_id {
    ($(#[$doc:meta] $name:ident, $prefix:literal, $field:literal;)*) => {$(
        #[$doc]
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Uuid);

        impl $name {
            pub const PREFIX: &'static str = $prefix;

            /// Creates a new id, ordered after every id this process created before.
            #[must_use]
            #[expect(clippy::new_without_default, reason = "an id is never a default value")]
            pub fn new() -> Self {
                Self(Uuid::now_v7())
            }

            #[must_use]
            pub const fn from_uuid(uuid: Uuid) -> Self {
                Self(uuid)
            }

            #[must_use]
            pub const fn as_uuid(self) -> Uuid {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(concat!($prefix, "_"))?;
                f.write_str(std::str::from_utf8(&encode(self.0)).map_err(|_| fmt::Error)?)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self, Error> {
                text.strip_prefix(concat!($prefix, "_")).and_then(decode).map(Self).ok_or_else(|| {
                    Error::new(Code::InvalidArgument, concat!("expected an id of the form ", $prefix, "_ and 26 characters"))
                        .at($field)
                })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}

typed_id! {
    /// A tenant: the unit of isolation.
    TenantId, "ten", "tenant_id";
    /// A directory that declares agents, models and tools.
    WorkspaceId, "ws", "workspace_id";
    /// A queue of runs that execute one after another.
    SessionId, "ses", "session_id";
    /// One unit of work.
    RunId, "run", "run_id";
    /// One durable unit inside a run.
    StepId, "step", "step_id";
    /// One call of a tool.
    ToolCallId, "tool", "tool_call_id";
    /// One entry of a session's event stream.
    EventId, "evt", "event_id";
    /// One incarnation of a control plane: sender of grants and receiver of end notices.
    ControlPlaneId, "pln", "plane_id";
    /// A process that executes runs.
    WorkerId, "wrk", "worker_id";
    /// A sandbox in which a session's tools execute.
    SandboxId, "sbx", "sandbox_id";
    /// A stored API key (never the secret itself).
    ApiKeyId, "key", "key_id";
    /// One message of a session's transcript.
    MessageId, "msg", "message_id";
    /// One write of a session's owner; makes retries idempotent.
    CommitId, "cmt", "commit_id";
    /// A tool call that waits for a person's decision.
    ApprovalId, "apr", "approval_id";
    /// A subscription of an external receiver to the events of a session.
    WebhookId, "whk", "webhook_id";
    /// Delivery of one event to one webhook, the same for all attempts.
    DeliveryId, "dlv", "delivery_id";
    /// A key with which control planes and stream services sign messages (never the secret itself).
    BusKeyId, "bky", "bus_key_id";
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn text_form_round_trips_and_keeps_order(a in any::<u128>(), b in any::<u128>()) {
            let (a, b) = (RunId::from_uuid(Uuid::from_u128(a)), RunId::from_uuid(Uuid::from_u128(b)));
            prop_assert_eq!(a.to_string().parse::<RunId>().unwrap(), a);
            prop_assert_eq!(a.cmp(&b), a.to_string().cmp(&b.to_string()));
        }

        #[test]
        fn arbitrary_text_never_panics(text in ".{0,64}") {
            prop_assert!(text.parse::<RunId>().is_ok() == (text.len() == 30 && text.starts_with("run_") && decode(&text[4..]).is_some()));
        }
    }

    #[test]
    fn wrong_prefix_case_and_overflow_are_rejected() {
        let run = RunId::new().to_string();
        assert!(run.replace("run_", "ses_").parse::<RunId>().is_err());
        assert!(run.to_uppercase().parse::<RunId>().is_err());
        assert!("run_80000000000000000000000000".parse::<RunId>().is_err());
        assert!("run_".parse::<RunId>().is_err());
        let error = "x".parse::<SessionId>().unwrap_err();
        assert_eq!((error.code(), error.field()), (Code::InvalidArgument, Some("session_id")));
    }
}
