//! Who signs messages between services, and with which key.

use std::fmt;

use crate::ids::{BusKeyId, WorkerId};

/// 256 random bits that sign messages. Never shown: `Debug` hides them, and there is no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct BusSecret([u8; Self::LEN]);

impl BusSecret {
    pub const LEN: usize = 32;

    #[must_use]
    pub const fn new(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }

    /// The secret itself, for the store and for signing.
    #[must_use]
    pub const fn expose(&self) -> &[u8; Self::LEN] {
        &self.0
    }
}

impl fmt::Debug for BusSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BusSecret(***)")
    }
}

/// Whose key signed a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BusSigner {
    /// A key of the installation. Control planes and stream services sign with the newest one.
    Installation(BusKeyId),
    /// A worker's own key. It ends with the worker's lease.
    Worker(WorkerId),
}

/// A key that is accepted now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BusKey {
    pub signer: BusSigner,
    pub secret: BusSecret,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_is_not_shown_in_debug_output() {
        let secret = BusSecret::new([171; BusSecret::LEN]);
        let key = BusKey { signer: BusSigner::Worker(WorkerId::new()), secret };
        let shown = format!("{key:?} {key:#?}");
        assert!(shown.contains("***") && !shown.contains("171") && !shown.contains("ab"), "{shown}");
    }
}
