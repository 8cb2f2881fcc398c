//! Waits for the end of a run.

use std::time::Duration;

use remuda_domain::{Error, error::Result};
use remuda_proto::v1;
use tokio::time::Instant;

use crate::Client;

/// Duration of one `WaitRun` call. Shorter than proxies allow for a silent request.
const ONE_WAIT: Duration = Duration::from_secs(30);
/// A server that responds "not yet" faster than this does not really wait.
const SHORT_WAIT: Duration = Duration::from_millis(500);

impl Client {
    /// Waits for the end of a run without a time limit. Also waits for a server that restarts meanwhile.
    pub async fn wait_until_finished(&self, run_id: &str) -> Result<v1::Run> {
        let mut retry = self.retry();
        loop {
            let started = Instant::now();
            let error = match self.wait_run(run_id, ONE_WAIT).await {
                Ok(v1::WaitRunResponse { run: Some(run), finished: true }) => return Ok(run),
                Ok(_) if started.elapsed() >= SHORT_WAIT => {
                    retry.progress();
                    continue;
                }
                // A server that shuts down responds immediately: back off instead of asking in a tight loop.
                Ok(_) => Error::unavailable("the server does not wait for the run"),
                Err(error) if !self.was_reached() => return Err(error),
                Err(error) => error,
            };
            retry.after(error).await?;
        }
    }
}
