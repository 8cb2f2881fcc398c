//! Waiting for the end of a run, mostly without polling.
//!
//! ```text
//!  submit with `wait`           ── the run names this control plane; the committer notifies it ──► [direct_waiters]
//!  wait for a run that exists   ── this control plane subscribes to the session's events ────────► [session_waiters]
//!  no notice within the timeout ── read the store, then listen on both
//! ```
//!
//! Notices may be lost. The store is read at growing intervals, so a lost notice only delays the answer.

mod direct_waiters;
mod session_waiters;

use std::time::Duration;

use remuda_domain::{
    ControlPlaneId, Run, RunId, SessionId, error::Result, identity::Principal, run::RunEndNotice,
};
use tokio::{
    sync::oneshot::{Receiver, error::RecvError},
    time::{Instant, sleep_until, timeout_at},
};

use super::App;

use direct_waiters::DirectWait;
pub(crate) use direct_waiters::DirectWaiters;
pub(super) use session_waiters::SessionWaiters;

/// The first read of the store comes early: the broker may have registered the subscription after the run ended.
const FIRST_POLL: Duration = Duration::from_secs(1);
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(5);
/// First interval while there is no subscription, for example while the broker is down.
const FIRST_RETRY: Duration = Duration::from_millis(20);

/// A registered wait for the end of one run.
pub(super) struct PendingWait {
    session: SessionId,
    run: RunId,
    direct: Option<DirectWait>,
    in_session: Option<Receiver<RunEndNotice>>,
}

impl PendingWait {
    /// The control plane to name in the run, if end notices reach it directly.
    pub(super) fn plane(&self) -> Option<ControlPlaneId> {
        self.direct.as_ref().map(DirectWait::plane)
    }

    /// Receives the run's end notice. Fails where there is no subscription, or no longer. Cancel-safe.
    async fn notice(&mut self) -> Result<RunEndNotice, RecvError> {
        match (&mut self.direct, &mut self.in_session) {
            (Some(direct), Some(in_session)) => tokio::select! {
                notice = &mut direct.ended => notice,
                notice = in_session => notice,
            },
            (Some(direct), None) => (&mut direct.ended).await,
            (None, Some(in_session)) => in_session.await,
            // Nothing is registered that could resolve.
            (None, None) => std::future::pending().await,
        }
    }
}

impl App {
    /// Returns the run once it has ended, or its current state after `max_wait`.
    pub async fn wait_run(&self, caller: &Principal, run: RunId, max_wait: Duration) -> Result<Run> {
        let deadline = Instant::now() + max_wait;
        let found = self.store.get_run(caller.tenant, run).await?;
        if found.state.is_terminal() {
            return Ok(found);
        }
        // Subscribe first, then read: an end between the two is seen by one of them.
        let pending = self.register_wait(caller, found.session, run);
        let found = self.store.get_run(caller.tenant, run).await?;
        if found.state.is_terminal() {
            return Ok(found);
        }
        self.wait_for_end(caller, pending, None, deadline).await
    }

    /// Registers a wait for a run that is about to be submitted. If the run then names [`PendingWait::plane`], its end
    /// is notified directly.
    pub(super) fn register_new_wait(
        &self,
        caller: &Principal,
        session: SessionId,
        run: RunId,
    ) -> PendingWait {
        match self.direct_waiters.register(run) {
            Some(direct) => PendingWait { session, run, direct: Some(direct), in_session: None },
            None => self.register_wait(caller, session, run),
        }
    }

    /// Registers a wait for a run's end among the events of its session.
    fn register_wait(&self, caller: &Principal, session: SessionId, run: RunId) -> PendingWait {
        let in_session = self.session_waiters.register((caller.tenant, session), run);
        PendingWait { session, run, direct: None, in_session: Some(in_session) }
    }

    /// Waits for a run to end. Pass the run as it was `queued` if the wait was registered before the submit: a notice
    /// that carries the result then saves the read.
    pub(super) async fn wait_for_end(
        &self,
        caller: &Principal,
        mut pending: PendingWait,
        queued: Option<&Run>,
        deadline: Instant,
    ) -> Result<Run> {
        let (mut pause, mut retry) = (FIRST_POLL, FIRST_RETRY);
        loop {
            let until = (Instant::now() + pause).min(deadline);
            let received = timeout_at(until, pending.notice()).await;
            match &received {
                Ok(Ok(notice)) => {
                    if let Some(run) = queued.and_then(|run| run.completed_from_notice(notice)) {
                        return Ok(run);
                    }
                }
                // There is no subscription, or no longer.
                Ok(Err(_)) => {
                    sleep_until((Instant::now() + retry).min(deadline)).await;
                    retry = (retry * 2).min(MAX_POLL_INTERVAL);
                }
                // The worker that was to send the direct notice may be gone, and the run may have ended elsewhere.
                // Subscribe first, then read.
                Err(_) if pending.in_session.is_none() => {
                    pending.in_session =
                        Some(self.session_waiters.register((caller.tenant, pending.session), pending.run));
                }
                Err(_) => {}
            }
            let run = self.store.get_run(caller.tenant, pending.run).await?;
            if run.state.is_terminal() || Instant::now() >= deadline {
                return Ok(run);
            }
            if received.is_ok() {
                pending = self.register_wait(caller, pending.session, pending.run);
            }
            pause = (pause * 2).min(MAX_POLL_INTERVAL);
        }
    }
}
