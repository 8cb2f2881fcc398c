//! Signals workers that own sessions without executing them: a grant that was committed with a submit may have been lost.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use remuda_dispatch::MAX_GRANT_AGE;
use remuda_domain::{SessionId, error::Result, worker::Signal};
use remuda_store::{LostGrant, Store};
use remuda_transport::Transport;

use super::background_task::{BackgroundTask, Round};

/// Workers reject grants older than [`MAX_GRANT_AGE`]. After that time a worker can claim
/// the session again without a race with the delayed grant.
pub(super) const GRANTED_AGO: Duration = Duration::from_secs(MAX_GRANT_AGE.as_secs() + 1);
const PAGE: u32 = 1000;
/// Pages per round. The next round continues where this one ended.
const PAGES: u32 = 10;

pub(super) struct RedeliverLostGrants {
    pub(super) store: Arc<dyn Store>,
    pub(super) transport: Arc<dyn Transport>,
    pub(super) pace: Duration,
    /// Grants younger than this may still be in flight.
    pub(super) granted_ago: Duration,
    /// The last session of the previous page. `None` at the beginning.
    pub(super) after: Option<SessionId>,
}

#[async_trait]
impl BackgroundTask for RedeliverLostGrants {
    fn name(&self) -> &'static str {
        "find_unheld"
    }

    fn pace(&self) -> Duration {
        self.pace
    }

    async fn round(&mut self) -> Result<Round> {
        let mut signalled = 0;
        // Grants cannot be lost within one process.
        if self.transport.grant_transport().is_none() {
            return Ok(Round::default());
        }
        for _ in 0..PAGES {
            let page = self.store.lost_grants(self.after, PAGE, self.granted_ago).await?;
            self.after = page.next;
            for LostGrant { tenant, session, owner } in page.sessions {
                self.transport.send_signal(owner, &Signal::ReclaimSession { tenant, session }).await?;
                signalled += 1;
            }
            if self.after.is_none() {
                break;
            }
        }
        Ok(Round::of([("told", signalled)]))
    }
}
