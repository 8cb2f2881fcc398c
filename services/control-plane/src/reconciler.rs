//! Wakes what nobody else did.
//!
//! A crash between commit and publish, a transport that lost its state, a worker that died: after each of them a session
//! with work may have no token. The reconciler looks for such sessions in the store and publishes their tokens; publishing
//! one that exists is refused and harmless. One reconciler leads at a time, by a lease in the store.

use std::{sync::Arc, time::Duration};

use remuda_domain::{SessionId, WorkerId, error::Result};
use remuda_store::Store;
use remuda_transport::{Published, Transport};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

const LEASE_NAME: &str = "reconciler";
const PAGE: u32 = 1000;

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
}

impl std::fmt::Debug for Reconciler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reconciler").field("holder", &self.holder).finish_non_exhaustive()
    }
}

impl Reconciler {
    pub fn new(store: Arc<dyn Store>, transport: Arc<dyn Transport>, options: ReconcilerOptions) -> Self {
        // Any unique name does; a typed id is at hand.
        Self { store, transport, options, holder: WorkerId::new().to_string() }
    }

    /// Runs rounds until `stop`. The first one comes at once: a start is when most may be missing.
    pub async fn run(self, stop: CancellationToken) {
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

    async fn round(&self) -> Result<()> {
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

    async fn wake_runnable(&self) -> Result<u64> {
        let mut woken = 0;
        let mut after: Option<SessionId> = None;
        loop {
            let page = self.store.runnable_sessions(after, PAGE).await?;
            for runnable in &page {
                let published =
                    self.transport.publish_token(&runnable.pool, runnable.tenant, runnable.session).await?;
                woken += u64::from(published == Published::Stored);
            }
            match page.last() {
                Some(last) if page.len() == PAGE as usize => after = Some(last.session),
                _ => return Ok(woken),
            }
        }
    }
}
