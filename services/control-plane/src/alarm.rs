//! Tells the reconciler that a wake-up may have been lost.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::sync::Notify;

/// Rung by whoever could not wake a session, heard by the one task that looks for such sessions. Cheap to clone. It keeps
/// ringing until it is answered, also while this process does not lead.
#[derive(Clone, Debug, Default)]
pub(crate) struct Alarm(Arc<State>);

#[derive(Debug, Default)]
struct State {
    ringing: AtomicBool,
    heard: Notify,
}

impl Alarm {
    pub(crate) fn ring(&self) {
        self.0.ringing.store(true, Ordering::Release);
        self.0.heard.notify_one();
    }

    /// Returns once it rings. Cancel-safe.
    pub(crate) async fn heard(&self) {
        while !self.0.ringing.load(Ordering::Acquire) {
            self.0.heard.notified().await;
        }
    }

    /// Turns it off and says whether it was ringing. Whoever answers looks after this, so that a ring during the look counts
    /// for the next one.
    pub(crate) fn answer(&self) -> bool {
        self.0.ringing.swap(false, Ordering::AcqRel)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn it_rings_until_it_is_answered() {
        let alarm = Alarm::default();
        let silent = async || timeout(Duration::from_millis(20), alarm.heard()).await.is_err();
        assert!(silent().await && !alarm.answer());
        alarm.ring();
        alarm.ring();
        assert!(!silent().await && !silent().await);
        assert!(alarm.answer() && !alarm.answer());
        assert!(silent().await, "what was answered is not heard again");
        let (ringer, heard) = (alarm.clone(), alarm.heard());
        let ring = async {
            tokio::task::yield_now().await;
            ringer.ring();
        };
        timeout(Duration::from_secs(5), async { tokio::join!(heard, ring) }).await.unwrap();
    }
}
