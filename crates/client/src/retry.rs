//! Retries with exponential backoff and a time limit.

use std::time::Duration;

use rand::Rng as _;
use remuda_domain::{Code, Error};
use tokio::time::{Instant, sleep};

const FIRST_DELAY: Duration = Duration::from_millis(50);
const MAX_DELAY: Duration = Duration::from_secs(2);

/// Decides whether to retry, and waits for the backoff.
///
/// Delays double from 50 ms to 2 s. Each is randomized within its upper half, so that clients that lost the same
/// server do not reconnect together.
#[derive(Debug)]
pub(crate) struct Retry {
    give_up_after: Duration,
    delay: Duration,
    stalled_since: Option<Instant>,
}

impl Retry {
    pub(crate) fn new(give_up_after: Duration) -> Self {
        Self { give_up_after, delay: FIRST_DELAY, stalled_since: None }
    }

    /// Progress was made: the next failure starts over.
    pub(crate) fn progress(&mut self) {
        self.delay = FIRST_DELAY;
        self.stalled_since = None;
    }

    /// Waits for the next attempt, or returns the error if retrying cannot help.
    pub(crate) async fn after(&mut self, error: Error) -> Result<(), Error> {
        if !error.code().is_outage() && error.code() != Code::DeadlineExceeded {
            return Err(error);
        }
        let now = Instant::now();
        let stalled = now.duration_since(*self.stalled_since.get_or_insert(now));
        if stalled >= self.give_up_after {
            return Err(error);
        }
        let requested = error.retry_delay().unwrap_or_default().min(MAX_DELAY);
        let left = self.give_up_after.saturating_sub(stalled);
        sleep(self.next_delay().max(requested).min(left)).await;
        Ok(())
    }

    fn next_delay(&mut self) -> Duration {
        let delay = self.delay.mul_f64(rand::rng().random_range(0.5..=1.0));
        self.delay = (self.delay * 2).min(MAX_DELAY);
        delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn gives_up_after_the_time_without_progress() {
        let mut retry = Retry::new(Duration::from_secs(10));
        let started = Instant::now();
        let mut tries = 0;
        let error = loop {
            match retry.after(Error::unavailable("down")).await {
                Ok(()) => tries += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(error.code(), Code::Unavailable);
        assert_eq!(started.elapsed().as_secs(), 10);
        assert!((8..40).contains(&tries), "{tries}");

        retry.progress();
        assert!(retry.after(Error::unavailable("down")).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn permanent_errors_are_not_retried() {
        let mut retry = Retry::new(Duration::from_secs(10));
        let error = retry.after(Error::new(Code::RunNotFound, "no")).await.unwrap_err();
        assert_eq!(error.code(), Code::RunNotFound);
    }
}
