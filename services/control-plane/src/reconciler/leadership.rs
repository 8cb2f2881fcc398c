//! Which control plane runs the background tasks.

use std::{sync::Arc, time::Duration};

use remuda_store::Store;
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

const LEASE_NAME: &str = "reconciler";
/// How soon a store that failed is asked again: after an outage every task waits for the answer.
const RETRY: Duration = Duration::from_millis(500);

/// Takes and renews a lease in the store, and tells the tasks whether this process holds it.
///
/// It saves work and is no lock: a process that stops for a while may find itself leading beside another one, which
/// idempotent tasks can bear.
pub(super) struct Leadership {
    store: Arc<dyn Store>,
    holder: String,
    lease: Duration,
    renew_every: Duration,
    until: watch::Sender<Option<Instant>>,
}

impl Leadership {
    /// `look_every` is how soon a lease that somebody else left is noticed.
    pub(super) fn new(
        store: Arc<dyn Store>,
        holder: String,
        lease: Duration,
        look_every: Duration,
    ) -> (Self, Term) {
        let (until, held_until) = watch::channel(None);
        let renew_every = look_every.min(lease / 3);
        (Self { store, holder, lease, renew_every, until }, Term(held_until))
    }

    /// Runs until `stop`. What is held then is still held: see [`Leadership::step_down`].
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

    /// Takes or renews the lease, and says whether the store answered.
    async fn renew(&self) -> bool {
        // Counted from before the request, so that it never seems longer than the store thinks.
        let before = Instant::now();
        match self.store.lead(LEASE_NAME, &self.holder, self.lease).await {
            Ok(held) => {
                let led = self.until.send_replace(held.then(|| before + self.lease)).is_some();
                if held && !led {
                    tracing::info!(holder = self.holder, "this control plane runs the background tasks");
                }
                true
            }
            // What is held lasts until it lapses.
            Err(error) => {
                tracing::debug!(error = error.chain(), "the reconciler's lease was not renewed");
                false
            }
        }
    }

    /// Ends the lease at once, so that the next leader need not wait for it.
    pub(super) async fn step_down(&self) {
        if let Err(error) = self.store.lead(LEASE_NAME, &self.holder, Duration::ZERO).await {
            tracing::debug!(error = error.chain(), "the reconciler's lease will end by itself");
        }
    }
}

/// Whether this process leads, as the tasks see it.
#[derive(Clone, Debug)]
pub(crate) struct Term(watch::Receiver<Option<Instant>>);

impl Term {
    /// Whether this process leads at this moment.
    pub(crate) fn is_held(&self) -> bool {
        self.0.borrow().is_some_and(|until| Instant::now() < until)
    }

    /// Returns as soon as this process leads; never, once nobody keeps the lease. Cancel-safe.
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
