//! Wakes what nobody else did.
//!
//! A crash between commit and publish, a transport that lost its state, a worker that died: after each of them a session
//! with work may have no token. The reconciler looks for such sessions in the store and publishes their tokens; publishing
//! one that exists is refused and harmless. One reconciler leads at a time, by a lease in the store.
//!
//! It also heals *orphans*: tokens that a crashed NATS (2.9) kept although they were acked. Nobody is given them, and they
//! refuse every publish, so their sessions would wait for ever.

use std::{collections::HashSet, sync::Arc, time::Duration};

use remuda_domain::{SessionId, WorkerId, error::Result};
use remuda_store::{Runnable, Store};
use remuda_transport::{Published, Transport};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

const LEASE_NAME: &str = "reconciler";
const PAGE: u32 = 1000;
/// Sessions remembered from one round to the next; more are healed in later rounds.
const MAX_SUSPECTS: usize = 10_000;

#[derive(Clone, Debug)]
pub struct ReconcilerOptions {
    /// Pause between two rounds.
    pub interval: Duration,
    /// How long a leader that vanished keeps others waiting.
    pub lease: Duration,
}

pub struct Reconciler {
    store: Arc<dyn Store>,
    transport: Arc<dyn Transport>,
    options: ReconcilerOptions,
    holder: String,
    /// What the round before left to suspect.
    suspects: Suspects,
}

/// Runnable sessions whose token was there already, while there were orphans.
#[derive(Default)]
struct Suspects {
    sessions: HashSet<SessionId>,
    orphans: u64,
}

impl std::fmt::Debug for Reconciler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reconciler").field("holder", &self.holder).finish_non_exhaustive()
    }
}

impl Reconciler {
    pub fn new(store: Arc<dyn Store>, transport: Arc<dyn Transport>, options: ReconcilerOptions) -> Self {
        // Any unique name does; a typed id is at hand.
        let holder = WorkerId::new().to_string();
        Self { store, transport, options, holder, suspects: Suspects::default() }
    }

    /// Runs rounds until `stop`. The first one comes at once: a start is when most may be missing.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut timer = tokio::time::interval(self.options.interval);
        timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return self.step_down().await,
                _ = timer.tick() => {}
            }
            if let Err(error) = self.round().await {
                tracing::warn!(error = error.chain(), "a reconciler round failed; the next one tries again");
            }
        }
    }

    /// Ends the lease at once, so that the next leader need not wait for it.
    async fn step_down(&self) {
        if let Err(error) = self.store.lead(LEASE_NAME, &self.holder, Duration::ZERO).await {
            tracing::debug!(error = error.chain(), "the reconciler's lease will end by itself");
        }
    }

    async fn round(&mut self) -> Result<()> {
        if !self.store.lead(LEASE_NAME, &self.holder, self.options.lease).await? {
            return Ok(());
        }
        let woken = self.wake_runnable().await?;
        if woken > 0 {
            tracing::info!(sessions = woken, "woke sessions that had no token");
        }
        let expired = self.store.delete_expired_keys().await?;
        if expired > 0 {
            tracing::debug!(keys = expired, "deleted expired idempotency keys");
        }
        Ok(())
    }

    /// Publishes the tokens of all runnable sessions. A session whose token was there in two rounds in a row, while there were
    /// orphans in both, has an orphan: in between, any worker would have taken it. If that is wrong, because the fleet is
    /// busy, the session only loses its place in line.
    async fn wake_runnable(&mut self) -> Result<u64> {
        let orphans = self.transport.orphaned_tokens().await?;
        let before = std::mem::take(&mut self.suspects);
        let healing = orphans > 0 && before.orphans > 0;
        self.suspects.orphans = orphans;
        let mut woken = 0;
        let mut after: Option<SessionId> = None;
        loop {
            let page = self.store.runnable_sessions(after, PAGE).await?;
            for runnable in &page {
                let session = runnable.session;
                let mut published = self.publish(runnable).await?;
                if published == Published::AlreadyScheduled && healing && before.sessions.contains(&session) {
                    published = self.replace(runnable).await?;
                }
                match published {
                    Published::Stored => woken += 1,
                    Published::AlreadyScheduled if self.suspects.sessions.len() < MAX_SUSPECTS => {
                        self.suspects.sessions.insert(session);
                    }
                    Published::AlreadyScheduled => {}
                }
            }
            match page.last() {
                Some(last) if page.len() == PAGE as usize => after = Some(last.session),
                _ => return Ok(woken),
            }
        }
    }

    async fn publish(&self, runnable: &Runnable) -> Result<Published> {
        self.transport.publish_token(&runnable.pool, runnable.tenant, runnable.session).await
    }

    /// Removes a token that has been there since before the last round, and publishes a new one.
    async fn replace(&self, runnable: &Runnable) -> Result<Published> {
        let Runnable { pool, tenant, session } = runnable;
        if !self.transport.discard_token(pool, *tenant, *session, self.options.interval).await? {
            return Ok(Published::AlreadyScheduled);
        }
        tracing::warn!(%session, "removed a token that nobody would have been given");
        self.publish(runnable).await
    }
}
