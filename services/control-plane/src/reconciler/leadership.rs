//! Leader election: decides which control plane runs the background tasks.

use std::{sync::Arc, time::Duration};

use remuda_store::Store;
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

const LEASE_NAME: &str = "reconciler";
/// Pause after a failed renewal: after an outage every task waits for it.
const RETRY: Duration = Duration::from_millis(500);

/// Takes and renews a lease in the store, and publishes to the tasks whether this process holds it.
///
/// The lease saves work and is not a lock: a process that was suspended may briefly lead beside another one. The tasks
/// are idempotent, so that is harmless.
pub(super) struct Leadership {
    store: Arc<dyn Store>,
    holder: String,
    lease: Duration,
    renew_every: Duration,
    until: watch::Sender<Option<Instant>>,
}

impl Leadership {
    /// `check_every` is how soon a lease that another process has left is noticed.
    pub(super) fn new(
        store: Arc<dyn Store>,
        holder: String,
        lease: Duration,
        check_every: Duration,
    ) -> (Self, Term) {
        let (until, held_until) = watch::channel(None);
        let renew_every = check_every.min(lease / 3);
        (Self { store, holder, lease, renew_every, until }, Term(held_until))
    }

    /// Runs until `stop`. The lease is kept then: see [`Leadership::step_down`].
    pub(super) async fn keep(&self, stop: &CancellationToken) {
        loop {
            let pause = tokio::select! {
                () = stop.cancelled() => return,
                answered = self.renew() => if answered { self.renew_every } else { self.renew_every.min(RETRY) },
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Takes or renews the lease. Returns whether the store responded.
    async fn renew(&self) -> bool {
        // From before the request, so that this process never counts the lease longer than the store does.
        let before = Instant::now();
        match self.store.acquire_leader_lease(LEASE_NAME, &self.holder, self.lease).await {
            Ok(held) => {
                let led = self.until.send_replace(held.then(|| before + self.lease)).is_some();
                if held && !led {
                    tracing::info!(holder = self.holder, "this control plane runs the background tasks");
                }
                true
            }
            // A held lease lasts until it expires.
            Err(error) => {
                tracing::debug!(error = error.chain(), "renewing the reconciler's lease failed");
                false
            }
        }
    }

    /// Ends the lease at once, so that the next leader need not wait until it expires.
    pub(super) async fn step_down(&self) {
        if let Err(error) = self.store.acquire_leader_lease(LEASE_NAME, &self.holder, Duration::ZERO).await {
            tracing::debug!(error = error.chain(), "releasing the reconciler's lease failed; it will expire");
        }
    }
}

/// The tasks' view of the lease: whether this process leads.
#[derive(Clone, Debug)]
pub(crate) struct Term(watch::Receiver<Option<Instant>>);

impl Term {
    /// Whether this process leads now.
    pub(crate) fn is_held(&self) -> bool {
        self.0.borrow().is_some_and(|until| Instant::now() < until)
    }

    /// Returns as soon as this process leads; never after the [`Leadership`] was dropped. Cancel-safe.
    pub(crate) async fn held(&mut self) {
        loop {
            if self.0.borrow_and_update().is_some_and(|until| Instant::now() < until) {
                return;
            }
            if self.0.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}
