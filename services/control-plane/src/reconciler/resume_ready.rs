//! Resumes parked runs whose wait is over: the process that should have resumed them died before it could.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use remuda_domain::error::Result;
use remuda_store::Store;

use super::{
    background_task::{BackgroundTask, Round},
    paged_scan::PagedScan,
};
use crate::announcer::Announcer;

pub(super) struct ResumeReady {
    pub(super) store: Arc<dyn Store>,
    pub(super) announcer: Announcer,
    pub(super) pace: Duration,
    pub(super) scan: PagedScan,
}

#[async_trait]
impl BackgroundTask for ResumeReady {
    fn name(&self) -> &'static str {
        "resume_ready"
    }

    fn pace(&self) -> Duration {
        self.pace
    }

    async fn round(&mut self) -> Result<Round> {
        let mut resumed = 0;
        for _ in 0..self.scan.pages {
            let swept = self.store.resume_ready(self.scan.after, self.scan.page).await?;
            self.scan.after = swept.next;
            resumed += swept.result.len() as u64;
            for change in swept.result {
                self.announcer.announce_change(change);
            }
            if self.scan.after.is_none() {
                break;
            }
        }
        Ok(Round::of([("resumed", resumed)]))
    }
}
