//! The worker's lease: renewed in time, or all work stops before it expires.

use std::{sync::Arc, time::Duration};

use remuda_domain::{Code, WorkerId};
use remuda_sandbox::{Backends, Guard};
use remuda_store::{Heartbeat, HeartbeatResponse, Store};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until, timeout_at},
};
use tokio_util::sync::CancellationToken;

use crate::active_sessions::ActiveSessions;

/// Renews one lease.
pub(crate) struct Lease {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) worker: WorkerId,
    pub(crate) length: Duration,
    pub(crate) every: Duration,
    pub(crate) active_sessions: ActiveSessions,
    pub(crate) guard: Option<Arc<Guard>>,
    pub(crate) backends: Backends,
    /// Cancelled when the store asks the worker to drain.
    pub(crate) drain: CancellationToken,
    /// A hint that the store may ask for something: renew soon.
    pub(crate) renew_now: Arc<Notify>,
}

impl Lease {
    /// How long before its expiry a lease counts as lost: everything the worker started has to be dead by then.
    fn margin(&self) -> Duration {
        self.length / 5
    }

    /// Renews the lease until it is lost, then returns. The lease is measured from *before* each renewal on this
    /// process's monotonic clock, so the worker never believes in its lease for longer than the database does.
    pub(crate) async fn renew_until_lost(&self, registered_at: Instant) {
        let mut ends = registered_at + self.length - self.margin();
        let mut next = registered_at + self.every;
        let mut last = registered_at;
        loop {
            if timeout_at(ends, self.wait_until(next, last)).await.is_err() {
                tracing::error!("lease was not renewed in time");
                return;
            }
            let begun = Instant::now();
            last = begun;
            let (running, worked) = self.active_sessions.running().into_iter().unzip();
            let beat = Heartbeat { worker: self.worker, lease: self.length, running, worked };
            match timeout_at(ends, self.store.renew_lease(&beat)).await {
                Ok(Ok(response)) => {
                    ends = begun + self.length - self.margin();
                    self.feed(begun);
                    self.apply(&response);
                }
                Ok(Err(error)) if error.code() == Code::OwnershipLost => {
                    tracing::error!("lease has expired");
                    return;
                }
                Ok(Err(error)) => {
                    tracing::warn!(error = error.chain(), "lease renewal failed; retrying");
                    next = begun + self.every / 4;
                    continue;
                }
                Err(_) => {
                    tracing::error!("lease renewal timed out");
                    return;
                }
            }
            next = begun + self.every;
        }
    }

    /// Waits until `next`, or for a hint: then only until a little after the `last` renewal, however many hints arrive.
    async fn wait_until(&self, next: Instant, last: Instant) {
        tokio::select! {
            () = sleep_until(next) => {}
            () = self.renew_now.notified() => sleep_until(next.min(last + self.every / 5)).await,
        }
    }

    /// Extends the deadline at which guard and sandboxes kill all tools. It lies before the expiry of the lease.
    pub(crate) fn feed(&self, begun: Instant) {
        let left = (begun + self.length - self.margin() / 2).saturating_duration_since(Instant::now());
        if let Some(guard) = &self.guard {
            guard.feed_watchdog(left);
        }
        self.backends.iter().for_each(|backend| backend.feed_watchdog(left));
    }

    fn apply(&self, response: &HeartbeatResponse) {
        for run in &response.cancel {
            self.active_sessions.cancel(*run);
        }
        if response.drain {
            self.drain.cancel();
        }
    }
}
