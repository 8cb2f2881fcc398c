//! The keys of all senders, as the store had them some seconds ago.
//!
//! One query reads all keys. It is repeated now and then, and when a message names a key that is not known: at most a
//! few times per second, whatever arrives. So a flood of invented senders does not become a flood of queries.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::{Mutex, RwLock};
use remuda_domain::{
    WorkerId,
    bus::{BusKey, BusSecret, BusSigner},
    error::{Error, Result},
};
use ring::hmac;
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};

use crate::bus_signing::{KeySource, SignsAs};

/// How old the keys may get. A retired key is accepted this much longer, at most.
const REFRESH_INTERVAL: Duration = Duration::from_secs(30);
/// Minimum time between two reads.
const MIN_INTERVAL: Duration = Duration::from_millis(200);
/// How long a message of an unknown sender, and those behind it, wait for the keys.
const MAX_WAIT: Duration = Duration::from_millis(250);
/// Timeout of a read.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) struct Keyring {
    source: Arc<dyn KeySource>,
    signs_as: SignsAs,
    known: RwLock<Arc<KnownKeys>>,
    /// The own key of a process that signs as its worker.
    worker: RwLock<Option<Arc<SigningKey>>>,
    /// When the last read began.
    last_read: Mutex<Instant>,
    /// Lets one read run at a time.
    reading: Semaphore,
}

/// The key that a process signs with.
pub(super) struct SigningKey {
    pub(super) signer: BusSigner,
    pub(super) key: hmac::Key,
}

struct KnownKeys {
    keys: HashMap<BusSigner, hmac::Key>,
    /// The newest key of the installation.
    newest: Option<Arc<SigningKey>>,
    read_at: Instant,
}

impl KnownKeys {
    fn new(keys: &[BusKey], read_at: Instant) -> Self {
        let newest = keys.iter().find(|key| matches!(key.signer, BusSigner::Installation(_)));
        let newest = newest.map(|it| Arc::new(SigningKey { signer: it.signer, key: hmac_key(&it.secret) }));
        let keys = keys.iter().map(|key| (key.signer, hmac_key(&key.secret))).collect();
        Self { keys, newest, read_at }
    }
}

impl Keyring {
    /// Reads the keys for the first time.
    pub(super) async fn open(source: Arc<dyn KeySource>, signs_as: SignsAs) -> Result<Self> {
        let now = Instant::now();
        let known = RwLock::new(Arc::new(KnownKeys::new(&source.keys().await?, now)));
        let (last_read, reading) = (Mutex::new(now), Semaphore::new(1));
        Ok(Self { source, signs_as, known, worker: RwLock::default(), last_read, reading })
    }

    /// Sets the key of the worker in this process. Ignored if the process signs with a key of the installation.
    pub(super) fn set_worker(&self, worker: WorkerId, secret: &BusSecret) {
        let key = SigningKey { signer: BusSigner::Worker(worker), key: hmac_key(secret) };
        *self.worker.write() = Some(Arc::new(key));
    }

    /// The key to sign with. `None` for a worker that is not registered yet.
    pub(super) fn own(&self) -> Option<Arc<SigningKey>> {
        match self.signs_as {
            SignsAs::Installation => self.known.read().newest.clone(),
            SignsAs::Worker => self.worker.read().clone(),
        }
    }

    /// The key of a sender. Reads the store if the sender is not known, unless that happened just now.
    pub(super) async fn find(&self, signer: BusSigner) -> Option<hmac::Key> {
        if let Some(key) = self.known_key(signer) {
            return Some(key);
        }
        let asked_at = Instant::now();
        let read = async {
            let Ok(_permit) = self.reading.acquire().await else { return };
            let last_read = *self.last_read.lock();
            // Another message may have caused a read meanwhile.
            if last_read < asked_at && last_read.elapsed() >= MIN_INTERVAL {
                self.read().await.ok();
            }
        };
        timeout(MAX_WAIT, read).await.ok();
        self.known_key(signer)
    }

    fn known_key(&self, signer: BusSigner) -> Option<hmac::Key> {
        self.known.read().keys.get(&signer).cloned()
    }

    pub(super) fn is_due(&self) -> bool {
        self.known.read().read_at.elapsed() >= REFRESH_INTERVAL
    }

    /// Reads the keys again if that is due.
    pub(super) async fn refresh(&self) {
        let Ok(_permit) = self.reading.try_acquire() else { return };
        if self.last_read.lock().elapsed() < REFRESH_INTERVAL / 10 || !self.is_due() {
            return;
        }
        match timeout(READ_TIMEOUT, self.read()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(
                    error = error.chain(),
                    "cannot read the keys of the bus; using the known ones"
                );
            }
            Err(_) => tracing::warn!("reading the keys of the bus timed out; using the known ones"),
        }
    }

    async fn read(&self) -> Result<()> {
        let now = Instant::now();
        *self.last_read.lock() = now;
        let known = KnownKeys::new(&self.source.keys().await?, now);
        if known.newest.is_none() {
            return Err(Error::internal(
                "the installation has no key for the bus; `remuda bus rotate-key` makes one",
            ));
        }
        *self.known.write() = Arc::new(known);
        Ok(())
    }
}

fn hmac_key(secret: &BusSecret) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, secret.expose())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use async_trait::async_trait;
    use remuda_domain::BusKeyId;

    use super::*;

    #[derive(Default)]
    struct Source {
        keys: parking_lot::Mutex<Vec<BusKey>>,
        reads: AtomicUsize,
    }

    #[async_trait]
    impl KeySource for Source {
        async fn keys(&self) -> Result<Vec<BusKey>> {
            self.reads.fetch_add(1, Ordering::Relaxed);
            Ok(self.keys.lock().clone())
        }
    }

    fn key(signer: BusSigner) -> BusKey {
        BusKey { signer, secret: BusSecret::new([1; 32]) }
    }

    fn installation() -> BusSigner {
        BusSigner::Installation(BusKeyId::new())
    }

    #[tokio::test(start_paused = true)]
    async fn flood_of_unknown_senders_causes_few_reads() {
        let source = Arc::new(Source::default());
        source.keys.lock().push(key(installation()));
        let keyring = Keyring::open(source.clone(), SignsAs::Installation).await.unwrap();
        for _ in 0..20 {
            for _ in 0..1000 {
                assert!(keyring.find(installation()).await.is_none());
            }
            tokio::time::advance(Duration::from_millis(50)).await;
        }
        assert!(source.reads.load(Ordering::Relaxed) <= 6, "{:?}", source.reads);
        let worker = BusSigner::Worker(WorkerId::new());
        source.keys.lock().push(key(worker));
        tokio::time::advance(MIN_INTERVAL).await;
        assert!(keyring.find(worker).await.is_some(), "a real one is found");
    }

    #[tokio::test(start_paused = true)]
    async fn newest_key_signs_and_retired_keys_are_forgotten() {
        let (old, new) = (installation(), installation());
        let source = Arc::new(Source::default());
        *source.keys.lock() = vec![key(old)];
        let keyring = Keyring::open(source.clone(), SignsAs::Installation).await.unwrap();
        assert_eq!(keyring.own().unwrap().signer, old);
        *source.keys.lock() = vec![key(new), key(old)];
        tokio::time::advance(REFRESH_INTERVAL).await;
        assert!(keyring.is_due());
        keyring.refresh().await;
        assert_eq!(keyring.own().unwrap().signer, new);
        assert!(keyring.find(old).await.is_some());
        *source.keys.lock() = vec![key(new)];
        tokio::time::advance(REFRESH_INTERVAL).await;
        keyring.refresh().await;
        assert!(keyring.find(old).await.is_none());
        // Without any key, the known ones stay.
        source.keys.lock().clear();
        tokio::time::advance(REFRESH_INTERVAL).await;
        keyring.refresh().await;
        assert_eq!(keyring.own().unwrap().signer, new);
    }

    #[tokio::test]
    async fn worker_signs_with_its_registered_key() {
        let source = Arc::new(Source::default());
        source.keys.lock().push(key(installation()));
        let keyring = Keyring::open(source, SignsAs::Worker).await.unwrap();
        assert!(keyring.own().is_none());
        let worker = WorkerId::new();
        keyring.set_worker(worker, &BusSecret::new([3; 32]));
        assert_eq!(keyring.own().unwrap().signer, BusSigner::Worker(worker));
    }
}
