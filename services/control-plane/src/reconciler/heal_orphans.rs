//! Replaces orphaned tokens, which no worker will ever receive.
//!
//! A NATS server before 2.10 that was killed may keep tokens that were acked. They reject every publish for their session
//! as a duplicate, so the session would wait for ever.

use std::{collections::HashSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use remuda_dispatch::Dispatcher;
use remuda_domain::{SessionId, error::Result};
use remuda_store::{RunnableSession, Store};
use remuda_telemetry::metrics::{self, Counter, registry::ORPHANED_TOKENS_HEALED};
use remuda_transport::{Published, Transport};

use super::{
    background_task::{BackgroundTask, Round},
    token_sweep::{TokenSweep, publish},
};

/// Sessions remembered from one round to the next. Later rounds heal the others.
const MAX_SUSPECTS: usize = 10_000;

pub(super) struct HealOrphans {
    store: Arc<dyn Store>,
    transport: Arc<dyn Transport>,
    dispatcher: Dispatcher,
    pace: Duration,
    /// RunnableSession sessions that already had a token in the last round, while there were orphans.
    suspects: HashSet<SessionId>,
    healed: Counter<u64>,
}

impl HealOrphans {
    pub(super) fn new(
        store: Arc<dyn Store>,
        transport: Arc<dyn Transport>,
        dispatcher: Dispatcher,
        pace: Duration,
    ) -> Self {
        let healed = metrics::counter(&ORPHANED_TOKENS_HEALED);
        healed.add(0, &[]);
        Self { store, transport, dispatcher, pace, suspects: HashSet::new(), healed }
    }

    /// Removes a token that is older than the last round, and publishes a new one.
    async fn replace(&self, runnable: &RunnableSession) -> Result<Published> {
        let RunnableSession { pool, tenant, session } = runnable;
        if !self.transport.discard_token(pool, *tenant, *session, self.pace).await? {
            return Ok(Published::AlreadyScheduled);
        }
        self.healed.add(1, &[]);
        tracing::warn!(%session, "orphaned token replaced");
        publish(&self.dispatcher, runnable).await
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

    /// A session that has a token in two rounds in a row, while there are orphans in both, has an orphan: a worker
    /// would have taken a good token in between. If that is wrong because the fleet is busy, the session only loses its
    /// place in the queue.
    async fn round(&mut self) -> Result<Round> {
        // Also cleared by a failure, so that the two rounds that count are a whole pace apart.
        let before = std::mem::take(&mut self.suspects);
        let orphans = self.transport.orphaned_tokens().await?;
        if orphans == 0 {
            return Ok(Round::default());
        }
        let (mut suspects, mut healed, mut woken) = (HashSet::new(), 0, 0);
        let mut sweep = TokenSweep::new(&self.store, &self.dispatcher);
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
