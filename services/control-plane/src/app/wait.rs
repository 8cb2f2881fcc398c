//! Waiting for a run without polling.
//!
//! ```text
//!  submit and wait ── the run names this plane ──► whoever ends it tells the plane      [named]
//!  wait for a run that is there already  ──► the session is listened to                 [ends]
//!  neither was heard for a while         ──► a look into the store, and both from then on
//! ```

mod ends;
mod named;

use std::time::Duration;

use remuda_domain::{PlaneId, Run, RunId, SessionId, error::Result, identity::Principal, run::LastWords};
use tokio::{
    sync::oneshot::{Receiver, error::RecvError},
    time::{Instant, sleep_until, timeout_at},
};

use super::App;

pub(super) use ends::Ends;
pub(crate) use named::Named;
use named::NamedWait;

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
    by_name: Option<NamedWait>,
    in_line: Option<Receiver<LastWords>>,
}

impl Expecting {
    /// Whom to tell by name.
    pub(super) fn plane(&self) -> Option<PlaneId> {
        self.by_name.as_ref().map(NamedWait::plane)
    }

    /// The run's last words. Fails where nobody listens, or no longer. Cancel-safe.
    async fn heard(&mut self) -> Result<LastWords, RecvError> {
        match (&mut self.by_name, &mut self.in_line) {
            (Some(named), Some(in_line)) => tokio::select! {
                words = &mut named.ended => words,
                words = in_line => words,
            },
            (Some(named), None) => (&mut named.ended).await,
            (None, Some(in_line)) => in_line.await,
            // Nothing that would ever resolve.
            (None, None) => std::future::pending().await,
        }
    }
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

    /// Begins to listen for the end of a run that will be submitted, and told of by name if it says so.
    pub(super) fn expect_new(&self, caller: &Principal, session: SessionId, run: RunId) -> Expecting {
        match self.named.expect(run) {
            Some(named) => Expecting { session, run, by_name: Some(named), in_line: None },
            None => self.expect(caller, session, run),
        }
    }

    /// Begins to listen for the end of a run in its session.
    fn expect(&self, caller: &Principal, session: SessionId, run: RunId) -> Expecting {
        let in_line = self.ends.expect((caller.tenant, session), run);
        Expecting { session, run, by_name: None, in_line: Some(in_line) }
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
            let heard = timeout_at(until, expecting.heard()).await;
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
                // Whoever was to tell it may be gone, and another one have ended the run. Listen first, then look.
                Err(_) if expecting.in_line.is_none() => {
                    expecting.in_line =
                        Some(self.ends.expect((caller.tenant, expecting.session), expecting.run));
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
