//! Messages on the bus.

use std::sync::OnceLock;

use remuda_transport::{GrantBatch, fuzzing::SignedMessages};

use super::{Target, kind};

pub(super) const PROOFS: Target = Target {
    name: "bus-messages",
    run: proofs,
    dictionary: &["A", "-", "_", "=", "\n", "remuda.ends.x", "remuda.grants.x"],
    inputs: 4_000,
};
pub(super) const GRANTS: Target = Target {
    name: "grant-batches",
    run: grants,
    dictionary: &[
        "\u{8}\u{1}",
        "\u{12}\u{10}",
        "{\"from\":\"",
        "{\"grants\":[",
        "\"fence\":",
        "\"epoch\":",
        "cp_",
        "ses_",
    ],
    inputs: 4_000,
};

/// Changes of a signed message are not accepted. The input says what to change: `proof \n subject \n payload`; an empty
/// part stays as it was signed.
fn proofs(bytes: &[u8]) -> u64 {
    static MESSAGES: OnceLock<SignedMessages> = OnceLock::new();
    let messages = MESSAGES.get_or_init(SignedMessages::new);
    let mut parts = bytes.splitn(3, |byte| *byte == b'\n');
    let mut part = || parts.next().filter(|part| !part.is_empty());
    let (proof, subject, payload) = (part(), part(), part());
    let signed = messages.sign("remuda.ends.x", b"payload");
    let text = |part: Option<&[u8]>| part.map(|part| String::from_utf8_lossy(part).into_owned());
    // The bytes that a part names are added to those of the proof, so that most of it stays as signed.
    let changed_proof = proof.map(|change| {
        let proof = signed.proof.bytes().enumerate();
        let byte = |(at, byte): (usize, u8)| if at < change.len() { change[at] } else { byte };
        String::from_utf8_lossy(&proof.map(byte).collect::<Vec<u8>>()).into_owned()
    });
    let subject = text(subject).unwrap_or_else(|| signed.subject.clone());
    let payload = payload.map_or_else(|| signed.payload.clone(), <[u8]>::to_vec);
    let proof = changed_proof.unwrap_or_else(|| signed.proof.clone());
    let same = proof == signed.proof && subject == signed.subject && payload == signed.payload;
    let verdict = messages.verdict(&proof, &subject, &payload);
    assert_eq!(
        verdict.is_ok(),
        same,
        "a message is accepted although it was changed, or not although it was not"
    );
    // Also without the rest of a message that this process signed.
    let text = String::from_utf8_lossy(bytes);
    assert!(messages.verdict(&text, "remuda.ends.x", b"payload").is_err(), "an invented proof is accepted");
    kind((verdict, same))
}

fn grants(bytes: &[u8]) -> u64 {
    let decoded = GrantBatch::decode(bytes.to_vec().into());
    if let Ok(batch) = &decoded
        && batch.grants.iter().all(|grant| grant.body.is_some())
    {
        let again = GrantBatch::decode(batch.encode()).ok();
        assert_eq!(again.as_ref(), Some(batch), "a batch changes when written");
    }
    kind(decoded.map(|batch| batch.grants.len().min(3)).map_err(|error| error.to_string()))
}
