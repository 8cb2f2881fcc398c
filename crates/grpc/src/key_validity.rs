//! Validity of keys during long requests: a key may be revoked or expire while a stream is open, or a call waits.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use parking_lot::{Mutex, MutexGuard};
use remuda_domain::{Code, Error};
use tokio_util::sync::CancellationToken;

/// The validity of a caller's key. The default is for a caller without a key and never ends.
#[derive(Clone, Debug, Default)]
pub struct KeyValidity(Option<Arc<CancellationToken>>);

impl KeyValidity {
    /// Waits until the key is revoked or has expired, and returns the error for the caller. Cancel-safe.
    pub async fn ended(&self) -> Error {
        match &self.0 {
            Some(ended) => ended.cancelled().await,
            None => std::future::pending().await,
        }
        Error::new(Code::Unauthenticated, "the API key was revoked or has expired")
    }
}

/// The keys of all open streams and waiting calls, by hash. Those with the same key share one entry.
#[derive(Debug, Default)]
pub(crate) struct WatchedKeys(Mutex<HashMap<[u8; 32], Weak<CancellationToken>>>);

impl WatchedKeys {
    pub(crate) fn watch(&self, key: [u8; 32]) -> KeyValidity {
        let mut keys = self.lock();
        if let Some(ended) = keys.get(&key).and_then(Weak::upgrade) {
            return KeyValidity(Some(ended));
        }
        let ended = Arc::new(CancellationToken::new());
        keys.insert(key, Arc::downgrade(&ended));
        KeyValidity(Some(ended))
    }

    /// The keys that are still in use.
    pub(crate) fn keys(&self) -> Vec<[u8; 32]> {
        let mut keys = self.lock();
        keys.retain(|_, ended| ended.strong_count() > 0);
        keys.keys().copied().collect()
    }

    /// Ends the validity of a key.
    pub(crate) fn end(&self, key: &[u8; 32]) {
        let ended = self.lock().remove(key);
        if let Some(ended) = ended.and_then(|ended| ended.upgrade()) {
            ended.cancel();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<[u8; 32], Weak<CancellationToken>>> {
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn all_streams_with_a_key_end_with_it() {
        let watched = WatchedKeys::default();
        let (one, two, other) = (watched.watch([1; 32]), watched.watch([1; 32]), watched.watch([2; 32]));
        assert_eq!(watched.keys().len(), 2);
        watched.end(&[1; 32]);
        for ended in [&one, &two] {
            assert_eq!(ended.ended().now_or_never().unwrap().code(), Code::Unauthenticated);
        }
        for valid in [&other, &KeyValidity::default(), &watched.watch([1; 32])] {
            assert!(valid.ended().now_or_never().is_none());
        }
        drop(other);
        assert_eq!(watched.keys(), Vec::<[u8; 32]>::new(), "keys without open streams are dropped");
    }
}
