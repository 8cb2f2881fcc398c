//! Wakes runnable sessions that have no token.
//!
//! A crash between commit and publish, a transport that lost its state: after each of them a session with work may have no
//! token, and publishing one that exists is refused and harmless. But trying them all costs, so the round compares counts
//! first: as many tokens as sessions with work means that nothing is missing, and a large honest backlog costs two counts.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use remuda_domain::{Pool, error::Result};
use remuda_store::Store;
use remuda_transport::{Published, TokenCounts, Transport};

use super::{
    sweep::Sweep,
    task::{BackgroundTask, Round},
};
use crate::alarm::Alarm;

/// Counts can be equal by accident: a token left by a session without work stands for one that is missing. So every so many
/// rounds all are tried.
const SWEEP_EVERY: u32 = 12;

pub(super) struct WakeSessions {
    store: Arc<dyn Store>,
    transport: Arc<dyn Transport>,
    alarm: Alarm,
    pace: Duration,
    rounds_since_sweep: u32,
    /// Where tokens are looked for. A pool that is not in here yet shows as missing tokens, and the sweep that follows adds it.
    pools: BTreeSet<Pool>,
    /// How many tokens still seemed to be missing when all had just been tried. Counts are not taken at one moment, so under
    /// load they seldom agree; only more than this is a reason for the next sweep.
    tolerated: u64,
}

impl WakeSessions {
    pub(super) fn new(
        store: Arc<dyn Store>,
        transport: Arc<dyn Transport>,
        alarm: Alarm,
        pace: Duration,
    ) -> Self {
        // A start is when most may be missing.
        alarm.ring();
        Self { store, transport, alarm, pace, rounds_since_sweep: 0, pools: BTreeSet::new(), tolerated: 0 }
    }

    async fn look(&mut self, alarmed: bool) -> Result<Round> {
        self.rounds_since_sweep += 1;
        if alarmed || self.rounds_since_sweep >= SWEEP_EVERY {
            return self.sweep().await;
        }
        let missing = self.missing_tokens().await?;
        if missing > self.tolerated { self.sweep().await } else { Ok(Round::default()) }
    }

    async fn missing_tokens(&self) -> Result<u64> {
        let sessions = self.store.count_sessions_with_work().await?;
        let mut tokens = 0;
        for pool in &self.pools {
            let TokenCounts { waiting, taken } = self.transport.token_counts(pool).await?;
            tokens += waiting + taken;
        }
        Ok(sessions.saturating_sub(tokens))
    }

    /// Tries the tokens of all runnable sessions.
    async fn sweep(&mut self) -> Result<Round> {
        self.pools = self.store.queue_stats().await?.into_iter().map(|stats| stats.pool).collect();
        let mut woken = 0;
        let mut sweep = Sweep::new(&self.store, &self.transport);
        while let Some(page) = sweep.next_page().await? {
            woken += page.iter().filter(|(_, published)| *published == Published::Stored).count() as u64;
        }
        self.rounds_since_sweep = 0;
        self.tolerated = self.missing_tokens().await?;
        Ok(Round::of([("woken", woken)]))
    }
}

#[async_trait]
impl BackgroundTask for WakeSessions {
    fn name(&self) -> &'static str {
        "wake_sessions"
    }

    fn pace(&self) -> Duration {
        self.pace
    }

    async fn round(&mut self) -> Result<Round> {
        let alarmed = self.alarm.answer();
        let outcome = self.look(alarmed).await;
        if alarmed && outcome.is_err() {
            self.alarm.ring();
        }
        outcome
    }

    async fn called(&self) {
        self.alarm.heard().await;
    }
}
