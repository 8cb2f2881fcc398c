//! Lets parked runs go on whose wait is over: whoever should have told them died before it could.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use remuda_domain::error::Result;
use remuda_store::Store;

use super::{
    task::{BackgroundTask, Round},
    walk::Walk,
};
use crate::waker::Waker;

pub(super) struct ResumeReady {
    pub(super) store: Arc<dyn Store>,
    pub(super) waker: Waker,
    pub(super) pace: Duration,
    pub(super) walk: Walk,
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
        for _ in 0..self.walk.pages {
            let swept = self.store.resume_ready(self.walk.after, self.walk.page).await?;
            self.walk.after = swept.next;
            resumed += swept.done.len() as u64;
            for change in swept.done {
                self.waker.announce_change(change);
            }
            if self.walk.after.is_none() {
                break;
            }
        }
        Ok(Round::of([("resumed", resumed)]))
    }
}
