//! Tells workers of sessions that they own and may not know of: a grant that was committed with a submit may be lost on its way.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use remuda_domain::{SessionId, error::Result, worker::Signal};
use remuda_store::{Store, Unheld};
use remuda_transport::Transport;

use super::task::{BackgroundTask, Round};

/// A grant that is older is not taken as it is by its worker ([`GRANT_AGE`](remuda_store::GRANT_AGE)), so whoever is told now claims anew and is not
/// overtaken by it.
pub(super) const GRANTED_AGO: Duration = Duration::from_secs(remuda_store::GRANT_AGE.as_secs() + 1);
const PAGE: u32 = 1000;
/// Pages of one round: the next one goes on where this one ended.
const PAGES: u32 = 10;

pub(super) struct FindUnheld {
    pub(super) store: Arc<dyn Store>,
    pub(super) transport: Arc<dyn Transport>,
    pub(super) pace: Duration,
    /// What was granted later may still be on its way.
    pub(super) granted_ago: Duration,
    /// The last session that was looked at. Nothing at the beginning.
    pub(super) after: Option<SessionId>,
}

#[async_trait]
impl BackgroundTask for FindUnheld {
    fn name(&self) -> &'static str {
        "find_unheld"
    }

    fn pace(&self) -> Duration {
        self.pace
    }

    async fn round(&mut self) -> Result<Round> {
        let mut told = 0;
        // Within one process nothing is lost on its way.
        if self.transport.carrier().is_none() {
            return Ok(Round::default());
        }
        for _ in 0..PAGES {
            let page = self.store.unheld_sessions(self.after, PAGE, self.granted_ago).await?;
            self.after = page.next;
            for Unheld { tenant, session, owner } in page.sessions {
                self.transport.send_signal(owner, &Signal::Yours { tenant, session }).await?;
                told += 1;
            }
            if self.after.is_none() {
                break;
            }
        }
        Ok(Round::of([("told", told)]))
    }
}
