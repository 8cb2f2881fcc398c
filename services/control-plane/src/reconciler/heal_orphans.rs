//! Replaces tokens that nobody will ever be given.
//!
//! A NATS server before 2.10 that was killed keeps tokens although they were acked. They refuse every publish, so their
//! sessions would wait for ever.

use std::{collections::HashSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use remuda_domain::{SessionId, error::Result};
use remuda_store::{Runnable, Store};
use remuda_telemetry::metrics::{self, Counter, registry::ORPHANED_TOKENS_HEALED};
use remuda_transport::{Published, Transport};

use super::{
    sweep::{Sweep, publish},
    task::{BackgroundTask, Round},
};

/// Sessions remembered from one round to the next; more are healed in later rounds.
const MAX_SUSPECTS: usize = 10_000;

pub(super) struct HealOrphans {
    store: Arc<dyn Store>,
    transport: Arc<dyn Transport>,
    pace: Duration,
    /// Runnable sessions whose token was there already in the last round, while there were orphans.
    suspects: HashSet<SessionId>,
    healed: Counter<u64>,
}

impl HealOrphans {
    pub(super) fn new(store: Arc<dyn Store>, transport: Arc<dyn Transport>, pace: Duration) -> Self {
        let healed = metrics::counter(&ORPHANED_TOKENS_HEALED);
        healed.add(0, &[]);
        Self { store, transport, pace, suspects: HashSet::new(), healed }
    }

    /// Removes a token that has been there since before the last round, and publishes a new one.
    async fn replace(&self, runnable: &Runnable) -> Result<Published> {
        let Runnable { pool, tenant, session } = runnable;
        if !self.transport.discard_token(pool, *tenant, *session, self.pace).await? {
            return Ok(Published::AlreadyScheduled);
        }
        self.healed.add(1, &[]);
        tracing::warn!(%session, "removed a token that nobody would have been given");
        publish(self.transport.as_ref(), runnable).await
    }
}

#[async_trait]
impl BackgroundTask for HealOrphans {
    fn name(&self) -> &'static str {
        "heal_orphans"
    }

    fn pace(&self) -> Duration {
        self.pace
    }

    /// A session whose token was there in two rounds in a row, while there were orphans in both, has an orphan: in between, any
    /// worker would have taken it. If that is wrong, because the fleet is busy, the session only loses its place in line.
    async fn round(&mut self) -> Result<Round> {
        // Also after a failure: two rounds that count are then a whole pace apart.
        let before = std::mem::take(&mut self.suspects);
        let orphans = self.transport.orphaned_tokens().await?;
        if orphans == 0 {
            return Ok(Round::default());
        }
        let (mut suspects, mut healed, mut woken) = (HashSet::new(), 0, 0);
        let mut sweep = Sweep::new(&self.store, &self.transport);
        while let Some(page) = sweep.next_page().await? {
            for (runnable, published) in page {
                if published == Published::Stored {
                    woken += 1;
                } else if before.contains(&runnable.session)
                    && self.replace(&runnable).await? == Published::Stored
                {
                    healed += 1;
                } else if suspects.len() < MAX_SUSPECTS {
                    suspects.insert(runnable.session);
                }
            }
        }
        self.suspects = suspects;
        Ok(Round::of([("orphans", orphans), ("healed", healed), ("woken", woken)]))
    }
}
