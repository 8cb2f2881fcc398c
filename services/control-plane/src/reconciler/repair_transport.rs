//! Restores the transport's configuration after manual changes.
//!
//! Processes check the stream and its consumers when they start. Without this task, a later change, such as a consumer
//! deleted by mistake or a stream that discards old messages, would stay until the next start.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use remuda_domain::error::Result;
use remuda_transport::Transport;

use super::background_task::{BackgroundTask, Round};

pub(super) struct RepairTransport {
    pub(super) transport: Arc<dyn Transport>,
    pub(super) pace: Duration,
}

#[async_trait]
impl BackgroundTask for RepairTransport {
    fn name(&self) -> &'static str {
        "mend_transport"
    }

    fn pace(&self) -> Duration {
        self.pace
    }

    async fn round(&mut self) -> Result<Round> {
        let repaired = self.transport.repair().await?;
        Ok(Round::of([("settings", repaired.len() as u64)]))
    }
}
