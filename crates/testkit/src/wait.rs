//! Polls conditions, so that tests need not sleep.

use std::{
    future::Future,
    time::{Duration, Instant},
};

const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// The result of a poll of [`wait_for`]: `true` and `Some` end the wait.
pub trait Condition {
    type Value;
    fn met(self) -> Option<Self::Value>;
}

impl Condition for bool {
    type Value = ();

    fn met(self) -> Option<()> {
        self.then_some(())
    }
}

impl<T> Condition for Option<T> {
    type Value = T;

    fn met(self) -> Self {
        self
    }
}

/// Polls `condition` until it returns `true` or `Some`.
///
/// # Panics
/// If `timeout` passes first; the message contains `description`. A poll that hangs counts as not met.
pub async fn wait_for<C, F>(
    description: &str,
    timeout: Duration,
    mut condition: impl FnMut() -> F,
) -> C::Value
where
    C: Condition,
    F: Future<Output = C>,
{
    let poll = async {
        let mut pause = FIRST_PAUSE;
        loop {
            if let Some(value) = condition().await.met() {
                return value;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    };
    match tokio::time::timeout(timeout, poll).await {
        Ok(value) => value,
        Err(_) => panic!("timed out after {timeout:?} waiting for: {description}"),
    }
}

/// Like [`wait_for`] without a runtime; returns `None` if `timeout` passes first.
pub fn wait_until<T>(timeout: Duration, mut condition: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + timeout;
    let mut pause = FIRST_PAUSE;
    loop {
        if let Some(value) = condition() {
            return Some(value);
        }
        if Instant::now() >= deadline {
            return None;
        }
        #[expect(clippy::disallowed_methods, reason = "for callers without a runtime: Drop, xtask")]
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn wait_returns_the_value_once_there_is_one() {
        let mut polls = 0;
        let seen = wait_for("three polls", Duration::from_secs(5), || {
            polls += 1;
            let seen = (polls == 3).then_some(polls);
            async move { seen }
        })
        .await;
        assert_eq!(seen, 3);
        wait_for("true", Duration::from_secs(5), || async { true }).await;
    }

    #[tokio::test]
    #[should_panic(expected = "the impossible")]
    async fn timeout_names_the_condition() {
        wait_for("the impossible", Duration::from_millis(5), std::future::pending::<bool>).await;
    }
}
