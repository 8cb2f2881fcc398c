//! Entry points for fuzzing: proofs of messages, without a bus.

use remuda_domain::{BusKeyId, bus::BusSigner};
use ring::hmac;

use crate::nats::envelope::proof::{Claims, Proof, Signed};

/// Signs messages, and checks any.
#[derive(Debug)]
pub struct SignedMessages {
    key: hmac::Key,
    claims: Claims,
}

/// A message with its proof.
#[derive(Clone, Debug)]
pub struct SignedMessage {
    pub proof: String,
    pub subject: String,
    pub payload: Vec<u8>,
}

impl Default for SignedMessages {
    fn default() -> Self {
        Self::new()
    }
}

impl SignedMessages {
    #[must_use]
    pub fn new() -> Self {
        let signer = BusSigner::Installation(BusKeyId::new());
        let key = hmac::Key::new(hmac::HMAC_SHA256, &[7; 32]);
        Self { key, claims: Claims { signer, process: 1, sent_at: 2, count: 3 } }
    }

    #[must_use]
    pub fn sign(&self, subject: &str, payload: &[u8]) -> SignedMessage {
        let proof = self.claims.prove(&self.key, Signed { subject, trace: "", payload });
        SignedMessage { proof, subject: subject.to_owned(), payload: payload.to_vec() }
    }

    /// Whether a message is proven; else why not.
    pub fn verdict(&self, proof: &str, subject: &str, payload: &[u8]) -> Result<(), &'static str> {
        let proof = Proof::parse(proof).ok_or("malformed")?;
        let proven = proof.verify(&self.key, Signed { subject, trace: "", payload });
        proven.then_some(()).ok_or("altered")
    }
}
