#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod bench {
    use std::time::Duration;
    use remuda_domain::{Code, Result};
    use tokio::time::{Instant, sleep};
    pub(crate) const LONG: Duration = Duration::from_secs(20);
    pub(crate) fn code<T: std::fmt::Debug>(result: Result<T>) -> Code { result.unwrap_err().code() }
    pub(crate) async fn wait_for(condition: impl Fn() -> bool) {
        let deadline = Instant::now() + LONG;
        while !condition() {
            assert!(Instant::now() < deadline, "waited in vain");
            sleep(Duration::from_millis(5)).await;
        }
    }
}
mod docker;
