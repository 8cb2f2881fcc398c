//! Waiting for a run without polling.

mod ends;

use std::time::Duration;

use remuda_domain::{Run, RunId, SessionId, error::Result, identity::Principal};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until, timeout_at},
};

use super::App;

pub(super) use ends::Ends;
use ends::LastWords;

/// Live events may be lost; looking into the store now and then makes a lost one only late. At first a little sooner: that somebody
/// listens may have come to the broker's ears too late.
const FIRST_LOOK: Duration = Duration::from_secs(1);
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// The same where nobody listens, as while the broker is away.
const FIRST_RETRY: Duration = Duration::from_millis(20);

/// Somebody who waits for the end of a run.
pub(super) struct Expecting {
    session: SessionId,
    run: RunId,
    ended: oneshot::Receiver<LastWords>,
}

impl App {
    /// The run once it is finished, or as it is after `max_wait`.
    pub async fn wait_run(&self, caller: &Principal, run: RunId, max_wait: Duration) -> Result<Run> {
        let deadline = Instant::now() + max_wait;
        let found = self.store.get_run(caller.tenant, run).await?;
        if found.state.is_terminal() {
            return Ok(found);
        }
        // Listen first, then look: an end between the two is seen by one of them.
        let expecting = self.expect(caller, found.session, run);
        let found = self.store.get_run(caller.tenant, run).await?;
        if found.state.is_terminal() {
            return Ok(found);
        }
        self.wait_for(caller, expecting, None, deadline).await
    }

    /// Begins to listen for the end of a run, which need not exist yet.
    pub(super) fn expect(&self, caller: &Principal, session: SessionId, run: RunId) -> Expecting {
        Expecting { session, run, ended: self.ends.expect((caller.tenant, session), run) }
    }

    /// Waits for a run. Whoever knows it as it was `queued`, and listens since then, need not look it up if its end tells all.
    pub(super) async fn wait_for(
        &self,
        caller: &Principal,
        mut expecting: Expecting,
        queued: Option<&Run>,
        deadline: Instant,
    ) -> Result<Run> {
        let (mut pause, mut unheard) = (FIRST_LOOK, FIRST_RETRY);
        loop {
            let until = (Instant::now() + pause).min(deadline);
            let heard = timeout_at(until, &mut expecting.ended).await;
            match &heard {
                Ok(Ok(words)) => {
                    if let Some(run) = queued.and_then(|run| run.completed_as_told(words)) {
                        return Ok(run);
                    }
                }
                // Nobody listens for us, or no longer.
                Ok(Err(_)) => {
                    sleep_until((Instant::now() + unheard).min(deadline)).await;
                    unheard = (unheard * 2).min(LOOK_AGAIN);
                }
                Err(_) => {}
            }
            let run = self.store.get_run(caller.tenant, expecting.run).await?;
            if run.state.is_terminal() || Instant::now() >= deadline {
                return Ok(run);
            }
            if heard.is_ok() {
                expecting = self.expect(caller, expecting.session, expecting.run);
            }
            pause = (pause * 2).min(LOOK_AGAIN);
        }
    }
}
