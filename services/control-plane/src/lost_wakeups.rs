//! A flag that tells the reconciler that a wake-up may have been lost.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::sync::Notify;

/// Set by code that failed to wake a session, consumed by the task that wakes such sessions. Cheap to clone. It stays set
/// until it is taken, also while this process does not lead.
#[derive(Clone, Debug, Default)]
pub(crate) struct LostWakeups(Arc<State>);

#[derive(Debug, Default)]
struct State {
    reported: AtomicBool,
    changed: Notify,
}

impl LostWakeups {
    pub(crate) fn report(&self) {
        self.0.reported.store(true, Ordering::Release);
        self.0.changed.notify_one();
    }

    /// Returns once the flag is set. Cancel-safe.
    pub(crate) async fn reported(&self) {
        while !self.0.reported.load(Ordering::Acquire) {
            self.0.changed.notified().await;
        }
    }

    /// Clears the flag and returns whether it was set. Call it before the scan, so that a report during the scan causes
    /// another one.
    pub(crate) fn take(&self) -> bool {
        self.0.reported.swap(false, Ordering::AcqRel)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn report_stays_until_it_is_taken() {
        let lost = LostWakeups::default();
        let silent = async || timeout(Duration::from_millis(20), lost.reported()).await.is_err();
        assert!(silent().await && !lost.take());
        lost.report();
        lost.report();
        assert!(!silent().await && !silent().await);
        assert!(lost.take() && !lost.take());
        assert!(silent().await, "a report is consumed once");
        let (reporter, reported) = (lost.clone(), lost.reported());
        let report = async {
            tokio::task::yield_now().await;
            reporter.report();
        };
        timeout(Duration::from_secs(5), async { tokio::join!(reported, report) }).await.unwrap();
    }
}
