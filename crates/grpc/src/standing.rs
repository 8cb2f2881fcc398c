//! Callers whose calls last: a key that was good when a stream began may be revoked while it goes on.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use remuda_domain::{Code, Error};
use tokio_util::sync::CancellationToken;

/// Whether a caller may still be here. The default is one without a key, who always may.
#[derive(Clone, Debug, Default)]
pub struct Standing(Option<Arc<CancellationToken>>);

impl Standing {
    /// Waits until the caller's key is no longer good, and says so. Cancel-safe.
    pub async fn lost(&self) -> Error {
        match &self.0 {
            Some(ended) => ended.cancelled().await,
            None => std::future::pending().await,
        }
        Error::new(Code::Unauthenticated, "the API key was revoked or has expired")
    }
}

/// The standings of all callers whose calls last, by the hash of their key. One for all calls with the same key.
#[derive(Debug, Default)]
pub(crate) struct Standings(Mutex<HashMap<[u8; 32], Weak<CancellationToken>>>);

impl Standings {
    pub(crate) fn of(&self, key: [u8; 32]) -> Standing {
        let mut standings = self.lock();
        if let Some(ended) = standings.get(&key).and_then(Weak::upgrade) {
            return Standing(Some(ended));
        }
        let ended = Arc::new(CancellationToken::new());
        standings.insert(key, Arc::downgrade(&ended));
        Standing(Some(ended))
    }

    /// The keys of those who are still here.
    pub(crate) fn keys(&self) -> Vec<[u8; 32]> {
        let mut standings = self.lock();
        standings.retain(|_, ended| ended.strong_count() > 0);
        standings.keys().copied().collect()
    }

    /// The key is no longer good.
    pub(crate) fn end(&self, key: &[u8; 32]) {
        let ended = self.lock().remove(key);
        if let Some(ended) = ended.and_then(|ended| ended.upgrade()) {
            ended.cancel();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<[u8; 32], Weak<CancellationToken>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn all_calls_with_a_key_end_with_it() {
        let standings = Standings::default();
        let (one, two, other) = (standings.of([1; 32]), standings.of([1; 32]), standings.of([2; 32]));
        assert_eq!(standings.keys().len(), 2);
        standings.end(&[1; 32]);
        for lost in [&one, &two] {
            assert_eq!(lost.lost().now_or_never().unwrap().code(), Code::Unauthenticated);
        }
        for kept in [&other, &Standing::default(), &standings.of([1; 32])] {
            assert!(kept.lost().now_or_never().is_none());
        }
        drop(other);
        assert_eq!(standings.keys(), Vec::<[u8; 32]>::new(), "who is gone is not looked at");
    }
}
