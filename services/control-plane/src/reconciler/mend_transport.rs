//! Puts the transport right where someone changed it by hand.
//!
//! Processes check stream and consumers when they start. A change in between, such as a consumer deleted by mistake or a
//! stream that now discards old messages, would else stay until the next start.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use remuda_domain::error::Result;
use remuda_transport::Transport;

use super::task::{BackgroundTask, Round};

pub(super) struct MendTransport {
    pub(super) transport: Arc<dyn Transport>,
    pub(super) pace: Duration,
}

#[async_trait]
impl BackgroundTask for MendTransport {
    fn name(&self) -> &'static str {
        "mend_transport"
    }

    fn pace(&self) -> Duration {
        self.pace
    }

    async fn round(&mut self) -> Result<Round> {
        let mended = self.transport.mend().await?;
        Ok(Round::of([("settings", mended.len() as u64)]))
    }
}
