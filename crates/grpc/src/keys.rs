//! API keys: random secrets that the store knows only by their hash.

use rand::RngCore as _;
use sha2::{Digest as _, Sha256};

const PREFIX: &str = "rmd_";
/// Longer than any valid key. Longer text is not even hashed.
pub const MAX_LEN: usize = 256;

/// Generates a secret of 256 random bits. It is shown once and never stored.
#[must_use]
pub fn generate() -> String {
    let mut bytes = [0u8; 32];
    rand::rng().fill_bytes(&mut bytes);
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{PREFIX}{hex}")
}

/// The form in which a secret is stored and looked up. The secret is random, so a fast hash is enough.
#[must_use]
pub fn hash(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_differ_and_hashes_are_stable() {
        let (a, b) = (generate(), generate());
        assert_ne!(a, b);
        assert!(a.starts_with(PREFIX) && a.len() < MAX_LEN);
        assert_eq!(hash(&a), hash(&a));
        assert_ne!(hash(&a), hash(&b));
    }
}
