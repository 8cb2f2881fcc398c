//! Cancels child runs whose parent has ended: the worker that should have cancelled them died before it could.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use remuda_domain::error::Result;
use remuda_store::Store;

use super::{
    background_task::{BackgroundTask, Round},
    paged_scan::PagedScan,
};
use crate::app::App;

pub(super) struct StopOrphans {
    pub(super) store: Arc<dyn Store>,
    pub(super) app: App,
    pub(super) pace: Duration,
    pub(super) scan: PagedScan,
}

#[async_trait]
impl BackgroundTask for StopOrphans {
    fn name(&self) -> &'static str {
        "stop_orphans"
    }

    fn pace(&self) -> Duration {
        self.pace
    }

    async fn round(&mut self) -> Result<Round> {
        let (mut ended, mut signalled) = (0, 0);
        for _ in 0..self.scan.pages {
            let swept = self.store.stop_orphans(self.scan.after, self.scan.page).await?;
            self.scan.after = swept.next;
            ended += swept.result.ended.len() as u64;
            signalled += swept.result.requested.len() as u64;
            self.app.announce_cancelled(&swept.result).await;
            if self.scan.after.is_none() {
                break;
            }
        }
        Ok(Round::of([("ended_runs", ended), ("told", signalled)]))
    }
}
