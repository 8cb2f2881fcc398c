//! Stops runs whose parent is over: the worker that should have stopped them died before it could.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use remuda_domain::error::Result;
use remuda_store::Store;

use super::task::{BackgroundTask, Round};
use crate::app::App;

const BATCH: u32 = 200;

pub(super) struct StopOrphans {
    pub(super) store: Arc<dyn Store>,
    pub(super) app: App,
    pub(super) pace: Duration,
}

#[async_trait]
impl BackgroundTask for StopOrphans {
    fn name(&self) -> &'static str {
        "stop_orphans"
    }

    fn pace(&self) -> Duration {
        self.pace
    }

    /// One batch at a time: a run that executes stays an orphan until its worker has stopped it, and asking again at once
    /// would not end it sooner.
    async fn round(&mut self) -> Result<Round> {
        let stopped = self.store.stop_orphans(BATCH).await?;
        let (ended, told) = (stopped.ended.len() as u64, stopped.requested.len() as u64);
        self.app.tell_all(&stopped).await;
        Ok(Round::of([("ended_runs", ended), ("told", told)]))
    }
}
