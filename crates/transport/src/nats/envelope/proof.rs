//! The header that proves who sent a message.
//!
//! It is `base64(claims ‖ tag)`. The claims name the signer and its process, and say when the message was sent and as
//! which one. The tag is HMAC-SHA256 over the hash of the claims, the subject, the trace context and the payload. So a
//! message can be neither changed nor moved to another subject.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use remuda_domain::{BusKeyId, WorkerId, bus::BusSigner};
use ring::{digest, hmac};
use uuid::Uuid;

const VERSION: u8 = 1;
const INSTALLATION: u8 = 0;
const WORKER: u8 = 1;
const CLAIMS_LEN: usize = 42;
const TAG_LEN: usize = digest::SHA256_OUTPUT_LEN;
const LEN: usize = CLAIMS_LEN + TAG_LEN;
/// Keeps this use of the key apart from any other.
const CONTEXT: &[u8] = b"remuda bus message\0";

/// What the sender says about a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claims {
    pub(crate) signer: BusSigner,
    /// Random number of the sending process: many processes share a key of the installation.
    pub(crate) process: u64,
    /// Milliseconds since 1970 by the sender's clock.
    pub(crate) sent_at: u64,
    /// Counts the messages of the process.
    pub(crate) count: u64,
}

/// What else is signed.
#[derive(Clone, Copy)]
pub(crate) struct Signed<'a> {
    pub(crate) subject: &'a str,
    /// The `traceparent` header, or nothing.
    pub(crate) trace: &'a str,
    pub(crate) payload: &'a [u8],
}

/// A received proof, not verified yet.
pub(crate) struct Proof {
    pub(crate) claims: Claims,
    bytes: [u8; LEN],
}

impl Claims {
    fn encode(&self) -> [u8; CLAIMS_LEN] {
        let (kind, id) = match self.signer {
            BusSigner::Installation(key) => (INSTALLATION, key.as_uuid()),
            BusSigner::Worker(worker) => (WORKER, worker.as_uuid()),
        };
        let mut bytes = [0; CLAIMS_LEN];
        bytes[0] = VERSION;
        bytes[1] = kind;
        bytes[2..18].copy_from_slice(id.as_bytes());
        bytes[18..26].copy_from_slice(&self.process.to_be_bytes());
        bytes[26..34].copy_from_slice(&self.sent_at.to_be_bytes());
        bytes[34..].copy_from_slice(&self.count.to_be_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let id = Uuid::from_slice(bytes.get(2..18)?).ok()?;
        let number = |from: usize| Some(u64::from_be_bytes(bytes.get(from..from + 8)?.try_into().ok()?));
        let signer = match bytes.get(..2)? {
            [VERSION, INSTALLATION] => BusSigner::Installation(BusKeyId::from_uuid(id)),
            [VERSION, WORKER] => BusSigner::Worker(WorkerId::from_uuid(id)),
            _ => return None,
        };
        Some(Self { signer, process: number(18)?, sent_at: number(26)?, count: number(34)? })
    }

    /// The text of the header.
    pub(crate) fn prove(&self, key: &hmac::Key, signed: Signed<'_>) -> String {
        let mut bytes = [0; LEN];
        let claims = self.encode();
        bytes[..CLAIMS_LEN].copy_from_slice(&claims);
        bytes[CLAIMS_LEN..].copy_from_slice(hmac::sign(key, signed.hash(&claims).as_ref()).as_ref());
        URL_SAFE_NO_PAD.encode(bytes)
    }
}

impl Signed<'_> {
    fn hash(&self, claims: &[u8]) -> digest::Digest {
        let mut hash = digest::Context::new(&digest::SHA256);
        hash.update(CONTEXT);
        hash.update(claims);
        // With their lengths: the end of one must not be taken for the beginning of the next.
        for text in [self.subject, self.trace] {
            hash.update(&(text.len() as u64).to_be_bytes());
            hash.update(text.as_bytes());
        }
        hash.update(self.payload);
        hash.finish()
    }
}

impl Proof {
    /// Reads the text of the header.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; LEN];
        let read = URL_SAFE_NO_PAD.decode_slice(text, &mut bytes).ok()?;
        let claims = (read == LEN).then(|| Claims::decode(&bytes)).flatten()?;
        Some(Self { claims, bytes })
    }

    /// Whether the owner of the key made exactly these claims about this message. Takes the same time for every tag.
    pub(crate) fn verify(&self, key: &hmac::Key, signed: Signed<'_>) -> bool {
        let (claims, tag) = self.bytes.split_at(CLAIMS_LEN);
        hmac::verify(key, signed.hash(claims).as_ref(), tag).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &[byte; 32])
    }

    const SIGNED: Signed<'static> = Signed { subject: "remuda.ends.x", trace: "00-1", payload: b"payload" };

    fn claims() -> Claims {
        Claims { signer: BusSigner::Worker(WorkerId::new()), process: u64::MAX, sent_at: 1, count: 7 }
    }

    #[test]
    fn proof_is_verified_only_for_the_same_key_subject_trace_and_payload() {
        let claims = claims();
        let text = claims.prove(&key(1), SIGNED);
        let proof = Proof::parse(&text).unwrap();
        assert_eq!(proof.claims, claims);
        assert!(proof.verify(&key(1), SIGNED));
        assert!(!proof.verify(&key(2), SIGNED));
        for other in [
            Signed { subject: "remuda.ends.y", ..SIGNED },
            Signed { trace: "", ..SIGNED },
            Signed { payload: b"payloae", ..SIGNED },
            // The same bytes, cut elsewhere.
            Signed { subject: "remuda.ends.x0", trace: "0-1", ..SIGNED },
            Signed { trace: "00-1p", payload: b"ayload", ..SIGNED },
        ] {
            assert!(!proof.verify(&key(1), other));
        }
    }

    #[test]
    fn no_bit_of_a_proof_can_be_changed() {
        let bytes = URL_SAFE_NO_PAD.decode(claims().prove(&key(1), SIGNED)).unwrap();
        assert_eq!(bytes.len(), LEN);
        for bit in 0..LEN * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let proof = Proof::parse(&URL_SAFE_NO_PAD.encode(&changed));
            assert!(proof.is_none_or(|proof| !proof.verify(&key(1), SIGNED)), "bit {bit}");
        }
    }

    #[test]
    fn anything_else_is_not_a_proof() {
        let text = claims().prove(&key(1), SIGNED);
        for bad in ["", "x", "=", &text[1..], &format!("{text}A"), &format!("{text}{text}"), &"A".repeat(99)]
        {
            // The last one has version 0.
            assert!(Proof::parse(bad).is_none(), "{bad}");
        }
    }
}
