//! Polls a condition without panicking on timeout.

use std::time::Duration;

use tokio::time::{Instant, sleep};

const PAUSE: Duration = Duration::from_millis(10);

/// Polls `condition` until it returns a value; `None` if `timeout` passes first.
pub(crate) async fn wait_until<T>(timeout: Duration, mut condition: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + timeout;
    loop {
        if let Some(value) = condition() {
            return Some(value);
        }
        if Instant::now() >= deadline {
            return None;
        }
        sleep(PAUSE).await;
    }
}
