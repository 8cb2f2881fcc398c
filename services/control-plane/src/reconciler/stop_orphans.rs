//! Stops runs whose parent is over: the worker that should have stopped them died before it could.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use remuda_domain::error::Result;
use remuda_store::Store;

use super::{
    task::{BackgroundTask, Round},
    walk::Walk,
};
use crate::app::App;

pub(super) struct StopOrphans {
    pub(super) store: Arc<dyn Store>,
    pub(super) app: App,
    pub(super) pace: Duration,
    pub(super) walk: Walk,
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
        let (mut ended, mut told) = (0, 0);
        for _ in 0..self.walk.pages {
            let swept = self.store.stop_orphans(self.walk.after, self.walk.page).await?;
            self.walk.after = swept.next;
            ended += swept.done.ended.len() as u64;
            told += swept.done.requested.len() as u64;
            self.app.tell_all(&swept.done).await;
            if self.walk.after.is_none() {
                break;
            }
        }
        Ok(Round::of([("ended_runs", ended), ("told", told)]))
    }
}
