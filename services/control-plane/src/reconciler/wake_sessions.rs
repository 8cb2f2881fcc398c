//! Wakes runnable sessions that have no token.
//!
//! After a crash between commit and publish, or after the transport lost its state, a session with work may have no
//! token. Publishing a token that exists is rejected and harmless, but trying all sessions is expensive. So a round
//! compares counts first: as many tokens as sessions with work means that none is missing. A large backlog then costs
//! two counts.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use remuda_dispatch::Dispatcher;
use remuda_domain::{Pool, error::Result};
use remuda_store::Store;
use remuda_transport::{Published, TokenCounts, Transport};

use super::{
    background_task::{BackgroundTask, Round},
    token_sweep::TokenSweep,
};
use crate::lost_wakeups::LostWakeups;

/// Counts can match by accident: a leftover token of a session without work may hide a missing one. So a full sweep runs
/// once in this many rounds.
const SWEEP_EVERY: u32 = 12;

pub(super) struct WakeSessions {
    store: Arc<dyn Store>,
    transport: Arc<dyn Transport>,
    dispatcher: Dispatcher,
    lost_wakeups: LostWakeups,
    pace: Duration,
    rounds_since_sweep: u32,
    /// Pools whose tokens are counted. A new pool shows up as missing tokens, and the sweep that follows adds it.
    pools: BTreeSet<Pool>,
    /// How many tokens seemed to be missing right after the last sweep. The counts are not taken at the same moment, so
    /// they seldom match under load; only more than this is a reason for a sweep.
    tolerated: u64,
}

impl WakeSessions {
    pub(super) fn new(
        store: Arc<dyn Store>,
        transport: Arc<dyn Transport>,
        dispatcher: Dispatcher,
        lost_wakeups: LostWakeups,
        pace: Duration,
    ) -> Self {
        // Most tokens may be missing at a start.
        lost_wakeups.report();
        let pools = BTreeSet::new();
        Self { store, transport, dispatcher, lost_wakeups, pace, rounds_since_sweep: 0, pools, tolerated: 0 }
    }

    async fn check(&mut self, reported: bool) -> Result<Round> {
        self.rounds_since_sweep += 1;
        if reported || self.rounds_since_sweep >= SWEEP_EVERY {
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

    /// Publishes the tokens of all runnable sessions.
    async fn sweep(&mut self) -> Result<Round> {
        self.pools = self.store.queue_stats().await?.into_iter().map(|stats| stats.pool).collect();
        let mut woken = 0;
        let mut sweep = TokenSweep::new(&self.store, &self.dispatcher);
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
        let reported = self.lost_wakeups.take();
        let outcome = self.check(reported).await;
        if reported && outcome.is_err() {
            self.lost_wakeups.report();
        }
        outcome
    }

    async fn triggered(&self) {
        self.lost_wakeups.reported().await;
    }
}
