//! A hostile member of the bus: it has no key and no database, but the administrator's credentials,
//! with which it can read and publish everything.
//!
//! It records the messages of every subject. Then it replays, duplicates, reorders, alters and moves them, and sends
//! forgeries of every kind, as long as it runs. What must not happen shows in the history of the clients, and in a file
//! that only a forged grant would write.

mod forgery;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result};
use async_nats::{Client, Message};
use bytes::Bytes;
use futures::StreamExt as _;
use parking_lot::Mutex;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};
use tokio::{task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

use self::forgery::{Forger, Forgery};
use crate::cluster::{Cluster, PREFIX};

/// Messages that are remembered of each kind.
const REMEMBERED: usize = 256;
/// Pause between two attacks.
const PAUSE: Duration = Duration::from_millis(3);
/// How long a publish may take while the server is down.
const PUBLISH_TIMEOUT: Duration = Duration::from_millis(100);

/// What the hostile member did, by kind of message and of attack.
pub type HostileCounts = BTreeMap<String, u64>;

/// A running hostile member.
#[derive(Debug)]
pub struct HostileMember {
    stop: CancellationToken,
    task: JoinHandle<()>,
    counts: Arc<Mutex<HostileCounts>>,
    forbidden_file: PathBuf,
}

impl HostileMember {
    /// Starts to attack the cluster, with the administrator's access to NATS. `directory` is outside of every workspace.
    pub async fn start(cluster: &Cluster, directory: &Path, seed: u64) -> Result<Self> {
        let (options, url) = cluster.nats_access()?;
        let client = options
            .retry_on_initial_connect()
            .event_callback(|_| std::future::ready(()))
            .connect(url)
            .await
            .context("the hostile member cannot connect")?;
        let forbidden_file = directory.join("written-by-a-forged-grant");
        let (stop, counts) = (CancellationToken::new(), Arc::<Mutex<HostileCounts>>::default());
        let attacker = Attacker {
            client,
            prefix: PREFIX.to_owned(),
            rng: StdRng::seed_from_u64(seed),
            recorded: HashMap::new(),
            forger: Forger::new(&forbidden_file),
            counts: Arc::clone(&counts),
        };
        let stopped = stop.clone();
        #[expect(clippy::disallowed_methods, reason = "`stop` waits for the task")]
        let task = tokio::spawn(async move {
            stopped.run_until_cancelled(attacker.run()).await;
        });
        Ok(Self { stop, task, counts, forbidden_file })
    }

    /// What it has done so far.
    #[must_use]
    pub fn counts(&self) -> HostileCounts {
        self.counts.lock().clone()
    }

    /// Ends the attacks. Returns what it did, and what it should not have been able to do.
    pub async fn stop(self) -> Result<(HostileCounts, Vec<String>)> {
        self.stop.cancel();
        self.task.await.context("the hostile member panicked")?;
        let mut problems = Vec::new();
        if self.forbidden_file.try_exists()? {
            problems.push(format!("a forged grant was executed: it wrote {}", self.forbidden_file.display()));
        }
        let counts = self.counts.lock().clone();
        Ok((counts, problems))
    }
}

struct Attacker {
    client: Client,
    prefix: String,
    rng: StdRng,
    /// The second token of the subject is the kind.
    recorded: HashMap<String, VecDeque<Message>>,
    forger: Forger,
    counts: Arc<Mutex<HostileCounts>>,
}

impl Attacker {
    async fn run(mut self) {
        loop {
            let subscribed = self.client.subscribe(format!("{}.>", self.prefix)).await;
            let Ok(mut subscriber) = subscribed else {
                tokio::time::sleep(PUBLISH_TIMEOUT).await;
                continue;
            };
            let mut attacks = tokio::time::interval(PAUSE);
            attacks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    message = subscriber.next() => match message {
                        Some(message) => self.record(message),
                        None => break,
                    },
                    _ = attacks.tick() => self.attack().await,
                }
            }
        }
    }

    fn record(&mut self, message: Message) {
        // Its own messages arrive too, and are as good as any.
        self.forger.learn(&message);
        let Some(kind) = message.subject.split('.').nth(1).map(str::to_owned) else { return };
        let messages = self.recorded.entry(kind).or_default();
        if messages.len() == REMEMBERED {
            messages.pop_front();
        }
        messages.push_back(message);
    }

    async fn attack(&mut self) {
        if self.rng.random_bool(0.5) {
            let Some(Forgery { kind, subject, payload }) = self.forger.forge(&self.prefix, &mut self.rng)
            else {
                return;
            };
            // With and without the proof of a real message.
            let headers = match self.rng.random_bool(0.5) {
                true => self.pick(kind).and_then(|message| message.headers),
                false => None,
            };
            return self.publish("forge", kind, subject, headers, payload).await;
        }
        let kinds: Vec<String> = self.recorded.keys().cloned().collect();
        let Some(kind) = kinds.choose(&mut self.rng) else { return };
        let Some(Message { subject, headers, payload, .. }) = self.pick(kind) else { return };
        match self.rng.random_range(0..5) {
            0 => self.publish("replay", kind, subject.to_string(), headers, payload).await,
            1 => {
                for _ in 0..5 {
                    let (subject, headers) = (subject.to_string(), headers.clone());
                    self.publish("duplicate", kind, subject, headers, payload.clone()).await;
                }
            }
            2 => {
                let altered = self.alter(&payload);
                self.publish("alter", kind, subject.to_string(), headers, altered).await;
            }
            3 => self.publish("strip", kind, subject.to_string(), None, payload).await,
            _ => {
                let Some(other) = self.pick(kind) else { return };
                self.publish("move", kind, other.subject.to_string(), headers, payload).await;
            }
        }
    }

    fn pick(&mut self, kind: &str) -> Option<Message> {
        let messages = self.recorded.get(kind)?;
        let index = self.rng.random_range(0..messages.len().max(1));
        messages.get(index).cloned()
    }

    /// Flips a bit, or changes a digit, which usually leaves valid JSON.
    fn alter(&mut self, payload: &[u8]) -> Bytes {
        let mut bytes = payload.to_vec();
        let digits: Vec<usize> = (0..bytes.len()).filter(|index| bytes[*index].is_ascii_digit()).collect();
        match digits.choose(&mut self.rng) {
            Some(index) if self.rng.random_bool(0.8) => {
                bytes[*index] = b'0' + (bytes[*index] - b'0' + self.rng.random_range(1..10)) % 10;
            }
            _ if !bytes.is_empty() => {
                let index = self.rng.random_range(0..bytes.len());
                bytes[index] ^= 1 << self.rng.random_range(0..8);
            }
            _ => bytes.push(b'x'),
        }
        bytes.into()
    }

    async fn publish(
        &self,
        attack: &str,
        kind: &str,
        subject: String,
        headers: Option<async_nats::HeaderMap>,
        payload: Bytes,
    ) {
        let sent = match headers {
            Some(headers) => {
                timeout(PUBLISH_TIMEOUT, self.client.publish_with_headers(subject, headers, payload)).await
            }
            None => timeout(PUBLISH_TIMEOUT, self.client.publish(subject, payload)).await,
        };
        if matches!(sent, Ok(Ok(()))) {
            *self.counts.lock().entry(format!("{kind} {attack}")).or_default() += 1;
        }
    }
}
