//! The worker's lease: renewed in time, or everything stops before it ends.

use std::{sync::Arc, time::Duration};

use remuda_domain::{Code, WorkerId};
use remuda_sandbox::{Backends, Guard};
use remuda_store::{Heartbeat, Orders, Store};
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::held::Held;

/// Keeps one lease alive.
pub(crate) struct Lease {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) worker: WorkerId,
    pub(crate) length: Duration,
    pub(crate) every: Duration,
    pub(crate) held: Held,
    pub(crate) guard: Option<Arc<Guard>>,
    pub(crate) backends: Backends,
    /// Cancelled when the store wants the worker to drain.
    pub(crate) drain: CancellationToken,
}

impl Lease {
    /// How long before its end a lease counts as lost: what was started has to be dead by then.
    fn margin(&self) -> Duration {
        self.length / 5
    }

    /// Renews until the lease is lost, and returns then. Measures from *before* each renewal on this process's own
    /// monotonic clock, so that it never believes in its lease for longer than the database does.
    pub(crate) async fn keep(&self, registered_at: Instant) {
        let mut ends = registered_at + self.length - self.margin();
        let mut next = registered_at + self.every;
        loop {
            if timeout_at(ends, sleep_until(next)).await.is_err() {
                tracing::error!("the lease could not be renewed in time");
                return;
            }
            let begun = Instant::now();
            let beat = Heartbeat { worker: self.worker, lease: self.length, running: self.held.running() };
            match timeout_at(ends, self.store.renew_lease(&beat)).await {
                Ok(Ok(orders)) => {
                    ends = begun + self.length - self.margin();
                    self.feed(begun);
                    self.obey(&orders);
                }
                Ok(Err(error)) if error.code() == Code::OwnershipLost => {
                    tracing::error!("the lease has ended");
                    return;
                }
                Ok(Err(error)) => {
                    tracing::warn!(error = error.chain(), "the lease could not be renewed");
                    next = begun + self.every / 4;
                    continue;
                }
                Err(_) => {
                    tracing::error!("the store did not renew the lease in time");
                    return;
                }
            }
            next = begun + self.every;
        }
    }

    /// Guard and sandboxes kill all tools unless they hear again before the lease ends.
    pub(crate) fn feed(&self, begun: Instant) {
        let left = (begun + self.length - self.margin() / 2).saturating_duration_since(Instant::now());
        if let Some(guard) = &self.guard {
            guard.feed(left);
        }
        self.backends.iter().for_each(|backend| backend.feed(left));
    }

    fn obey(&self, orders: &Orders) {
        for run in &orders.cancel {
            self.held.cancel(*run);
        }
        if orders.drain {
            self.drain.cancel();
        }
    }
}
