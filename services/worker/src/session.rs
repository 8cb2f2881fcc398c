//! Serves one session: claim, execute, release, then check for new runs.

mod pipeline;

use std::{sync::Arc, time::Duration};

use remuda_dispatch::{Dispatcher, retry_until_abandoned};
use remuda_domain::{
    Code, CommitId, Error, Fence, RunState, SessionId, TenantId, WorkerId,
    error::Result,
    run::{Failure, RunEnd, RunEndNotice},
};
use remuda_engine::{Execution, Gate, HandOver, RunControl, now};
use remuda_store::{Claim, Commit, Committed, Finish, Grant, RunTransition};
use remuda_telemetry::metrics;
use remuda_trace::AttemptEnd;
use remuda_transport::Token;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span};

use self::pipeline::{CommitResult, EndedRun, RunPipeline};
use crate::{
    Worker,
    active_sessions::{ActiveSessions, SessionGuard},
    attempt_trace::{Arrival, AttemptTrace},
    log_spans,
};

/// Delay before a failed claim is retried.
const RETRY: Duration = Duration::from_secs(1);
/// Upper limit of the delay of a refused token: the owner may release the session at any moment before its lease
/// expires.
const MAX_REFUSAL_DELAY: Duration = Duration::from_secs(15);
/// Pauses between attempts to release a session if the store fails.
const FIRST_RELEASE_PAUSE: Duration = Duration::from_millis(100);
const MAX_RELEASE_PAUSE: Duration = Duration::from_secs(5);
/// How often a claim is repeated immediately after it had to reclaim the session from a lost worker first.
const MAX_IMMEDIATE_CLAIMS: u32 = 3;

/// State shared by the tasks of one incarnation.
#[derive(Debug)]
pub(crate) struct SessionServer {
    pub(crate) worker: Arc<Worker>,
    pub(crate) id: WorkerId,
    pub(crate) active_sessions: ActiveSessions,
    pub(crate) drain: CancellationToken,
    /// The drain deadline has passed: running calls are killed and recorded as interrupted.
    pub(crate) interrupt: CancellationToken,
    pub(crate) abandon: CancellationToken,
    /// The lease is lost: this worker must not write anything about any session.
    pub(crate) lost: CancellationToken,
}

/// How the work on a session ended.
#[derive(Debug, PartialEq, Eq)]
enum SessionOutcome {
    /// The session is released, and no run was waiting when that was committed.
    Idle,
    /// The session is released, and runs may be waiting.
    Released,
    /// Another worker owns the session, or may own it. A late ack or nak would hit the new owner's token, so none is
    /// sent.
    Lost,
}

impl SessionServer {
    fn dispatcher(&self) -> &Dispatcher {
        &self.worker.engine.dispatcher
    }

    /// Serves the session of a token.
    pub(crate) async fn serve(&self, token: Box<dyn Token>) {
        let (tenant, session) = (token.tenant(), token.session());
        let arrival = Arrival { origin: token.origin(), received: now() };
        let Some(session_guard) = self.active_sessions.acquire(session) else {
            self.put_back(token, RETRY).await;
            return;
        };
        let _busy = self.worker.meters.busy();
        match self.claim(tenant, session).await {
            Ok(Claim::Granted(grant)) => {
                let outcome = self.work_with_token(token.as_ref(), &session_guard, *grant, arrival).await;
                drop(session_guard);
                if outcome != SessionOutcome::Lost {
                    self.finish_token_and_recheck(token).await;
                }
            }
            Ok(Claim::NothingToDo) => {
                drop(session_guard);
                self.finish_token_and_recheck(token).await;
            }
            // No look for runnable runs: this pool has nothing to do with the session.
            Ok(Claim::OtherPool) => {
                tracing::debug!("removing a token of a session of another pool");
                drop(session_guard);
                self.finish_token(token).await;
            }
            Ok(Claim::Reclaimed(_)) => self.put_back(token, RETRY).await,
            Ok(Claim::Refused { owner, retry_after }) => {
                tracing::debug!(%owner, "claim refused: the session has a live owner");
                self.put_back(token, retry_after.clamp(Duration::from_millis(100), MAX_REFUSAL_DELAY)).await;
            }
            Err(error) => {
                tracing::warn!(error = error.chain(), "claim failed; the token is put back");
                self.put_back(token, RETRY).await;
            }
        }
    }

    /// Works on a session that the store granted directly. There is no token, and a concurrent submit either finds
    /// this owner or publishes one. So the session needs no recheck, unless runs are left behind.
    pub(crate) async fn serve_granted(&self, session_guard: SessionGuard, grant: Grant) {
        let _busy = self.worker.meters.busy();
        let fence = grant.fence;
        let outcome = RunPipeline::new(self, &session_guard, &grant).run(grant, None).await;
        drop(session_guard);
        if outcome == SessionOutcome::Released {
            self.republish_if_runnable(fence.tenant, fence.session).await;
        }
    }

    /// Claims a session that the store has recorded as this worker's although it is not active here: the grant was
    /// lost or is too old.
    pub(crate) async fn reclaim_session(&self, tenant: TenantId, session: SessionId) -> Option<Grant> {
        match self.claim(tenant, session).await {
            Ok(Claim::Granted(grant)) => Some(*grant),
            // Another worker owns it by now, or it has nothing to run.
            Ok(_) => None,
            Err(error) => {
                tracing::warn!(error = error.chain(), "cannot reclaim a session of this worker");
                None
            }
        }
    }

    /// Releases a session that was granted to this worker although it has no free slot.
    pub(crate) async fn decline(&self, fence: Fence) {
        tracing::debug!("no free slot for a granted session; releasing it");
        if self.release(fence).await == SessionOutcome::Released {
            self.republish_if_runnable(fence.tenant, fence.session).await;
        }
    }

    /// Claims an active session. Retried by this worker, not by another: the lost response may have been a grant.
    async fn claim(&self, tenant: TenantId, session: SessionId) -> Result<Claim> {
        let store = &self.worker.engine.store;
        let mut claims = 0;
        loop {
            claims += 1;
            let claim = retry_until_abandoned(&self.abandon, || store.claim(tenant, session, self.id)).await;
            self.worker.meters.claimed(&claim);
            match claim? {
                Claim::Reclaimed(change) if claims < MAX_IMMEDIATE_CLAIMS => {
                    tracing::info!("reclaimed the session from a lost worker");
                    self.dispatcher().publish(&change, None).await;
                }
                Claim::Granted(grant) => {
                    self.active_sessions.record_claim(&grant.fence);
                    return Ok(Claim::Granted(grant));
                }
                claim => return Ok(claim),
            }
        }
    }

    async fn put_back(&self, token: Box<dyn Token>, delay: Duration) {
        if let Err(error) = token.retry_after(delay).await {
            tracing::debug!(error = error.chain(), "token was not put back; it will be redelivered");
        }
    }

    /// Removes the token, *then* checks for a runnable run. A submit whose token was deduplicated against this one
    /// committed before this token was gone, so the check sees its run: no wake-up is lost.
    async fn finish_token_and_recheck(&self, token: Box<dyn Token>) {
        let (tenant, session) = (token.tenant(), token.session());
        self.finish_token(token).await;
        self.republish_if_runnable(tenant, session).await;
    }

    async fn finish_token(&self, token: Box<dyn Token>) {
        if let Err(error) = token.finish().await {
            tracing::debug!(error = error.chain(), "token was not removed; it may be redelivered");
        }
    }

    /// Publishes a token if a run of the session could start.
    async fn republish_if_runnable(&self, tenant: TenantId, session: SessionId) {
        let pool = &self.worker.options.pool;
        if let Err(error) = self.dispatcher().wake_if_runnable(pool, tenant, session).await {
            tracing::warn!(
                error = error.chain(),
                "cannot publish a token for a waiting session; the reconciler will"
            );
        }
    }

    /// Works on the session while keeping its token alive.
    async fn work_with_token(
        &self,
        token: &dyn Token,
        session_guard: &SessionGuard,
        grant: Grant,
        arrival: Arrival,
    ) -> SessionOutcome {
        let keep_alive = async {
            let mut timer = tokio::time::interval(token.keep_alive_every());
            timer.tick().await;
            loop {
                timer.tick().await;
                if let Err(error) = token.keep_alive().await {
                    tracing::debug!(error = error.chain(), "cannot keep the token alive");
                }
            }
        };
        tokio::select! {
            outcome = RunPipeline::new(self, session_guard, &grant).run(grant, Some(arrival)) => outcome,
            () = keep_alive => SessionOutcome::Lost,
        }
    }

    /// No slot is free for other sessions.
    fn all_slots_busy(&self) -> bool {
        self.worker.meters.busy_slots() >= self.worker.options.slots
    }

    async fn emit_trace(&self, trace: Option<AttemptTrace>, grant: &Grant, end: AttemptEnd) {
        if let Some(trace) = trace {
            trace.end(&*self.worker.engine.store, grant, end).await;
        }
    }

    /// Executes one run. A cancel request is acknowledged in the store while the run's processes are being killed.
    async fn execute(
        &self,
        session_guard: &SessionGuard,
        grant: Grant,
        gate: Gate,
        abandon: CancellationToken,
    ) -> Execution {
        tracing::debug!(attempt = grant.run.attempt, "run started or resumed");
        let grant = &grant;
        let (cancel, resend_deltas) = session_guard.set_current_run(grant.run.id, grant.run.worked);
        let control = RunControl {
            cancel: cancel.clone(),
            drain: self.drain.clone(),
            interrupt: self.interrupt.clone(),
            abandon,
            gate,
            resend_deltas,
        };
        let executing = self.worker.engine.execute(grant, &control);
        let receipt = async {
            cancel.cancelled().await;
            self.acknowledge_cancel(grant).await;
        };
        tokio::pin!(executing, receipt);
        tokio::select! {
            biased;
            execution = &mut executing => {
                let stopped = matches!(&execution, Execution::Ended(it) if it.end.state == RunState::Cancelled);
                // The receipt of the cancel request is recorded before the end that it caused.
                if stopped && cancel.is_cancelled() {
                    receipt.await;
                }
                execution
            }
            () = &mut receipt => executing.await,
        }
    }

    async fn acknowledge_cancel(&self, grant: &Grant) {
        let (engine, fence) = (&self.worker.engine, grant.fence);
        let acknowledged =
            retry_until_abandoned(&self.abandon, || engine.store.mark_cancel_delivered(fence, grant.run.id))
                .await;
        match acknowledged {
            Ok(events) => engine.transport.publish_events(fence.tenant, fence.session, &events).await,
            // The run ended by itself before the request was recorded.
            Err(error) if error.code() == Code::OwnershipLost => {}
            Err(error) => {
                tracing::warn!(error = error.chain(), "cannot acknowledge a cancel request");
            }
        }
    }

    /// Commits the ends of consecutive runs in one batch and publishes them.
    async fn commit_ends(&self, mut batch: Vec<EndedRun>, wanted: u32) -> CommitResult {
        let begun = now();
        let span = batch.first().map_or_else(Span::none, |first| log_spans::run_span(&first.grant.run));
        let outcome = self.commit_batch(&mut batch, wanted).instrument(span).await;
        if let Ok(committed) = &outcome {
            for ended_run in batch.iter().take(committed.ended).skip(1) {
                ended_run.trace.iter().for_each(|trace| trace.committed(&ended_run.commit, begun));
            }
            for ended_run in batch.iter().take(committed.ended) {
                if tracing::enabled!(tracing::Level::DEBUG) {
                    log_spans::run_span(&ended_run.grant.run).in_scope(|| tracing::debug!("run ended"));
                }
                self.worker.meters.ended(&ended_run.grant, ended_run.state, committed);
                self.notify_waiter(&ended_run.grant, committed);
                if ended_run.state == RunState::Cancelled {
                    self.record_cancel_receipts(&ended_run.grant).await;
                }
            }
            // Only the first run of a batch may have a parent or children.
            if let Some(first) = batch.first() {
                self.settle_relatives(&first.grant, committed, first.trace.as_ref()).await;
            }
        }
        CommitResult { batch, outcome }
    }

    /// Commits a batch. If the store rejects it as a whole, commits only the first run; the runs behind it are
    /// executed again.
    async fn commit_batch(&self, batch: &mut [EndedRun], wanted: u32) -> Result<Committed> {
        let Some((first, others)) = batch.split_first_mut() else {
            return Err(Error::internal("the commit batch is empty"));
        };
        first.commit.prefetch = wanted;
        let rejected = |error: &Error| error.code() != Code::OwnershipLost && !error.code().is_outage();
        if !others.is_empty() {
            let behind = others.iter().map(|ended_run| ended_run.commit.clone()).collect();
            let together = Commit { id: CommitId::new(), successors: behind, ..first.commit.clone() };
            match self.commit(&together, first.trace.as_ref()).await {
                Err(error) if rejected(&error) => {
                    tracing::warn!(
                        error = error.chain(),
                        "commit batch rejected; committing the first run alone"
                    );
                }
                committed => return committed,
            }
        }
        match self.commit(&first.commit, first.trace.as_ref()).await {
            Err(error) if rejected(&error) => {
                first.state = RunState::Failed;
                self.commit(&bare_failure(&first.commit, &error), first.trace.as_ref()).await
            }
            committed => committed,
        }
    }

    /// Records how long the cancel took. Only the store knows when it was requested.
    async fn record_cancel_receipts(&self, grant: &Grant) {
        if !metrics::is_installed() {
            return;
        }
        if let Ok(run) = self.worker.engine.store.get_run(grant.fence.tenant, grant.run.id).await {
            self.worker.meters.stopped(&run);
        }
    }

    async fn commit_hand_over(
        &self,
        grant: &Grant,
        hand_over: HandOver,
        then: RunTransition,
        trace: Option<&AttemptTrace>,
    ) -> Result<Committed> {
        let HandOver { entry, events } = hand_over;
        let mut commit = entry.into_commit(grant.fence, grant.run.id, events, then);
        commit.worked = grant.run.worked;
        let committed = self.commit(&commit, trace).await?;
        // The run may have ended instead, by a cancel request or by its timeout.
        self.notify_waiter(grant, &committed);
        self.settle_relatives(grant, &committed, trace).await;
        Ok(committed)
    }

    /// Notifies the control plane whose client waits for the run, if the run has ended.
    fn notify_waiter(&self, grant: &Grant, committed: &Committed) {
        let Some(plane) = grant.run.awaited_by else { return };
        if let Some(notice) = RunEndNotice::from_events(grant.run.id, &committed.events) {
            self.worker.engine.transport.notify_end(plane, notice);
        }
    }

    /// Cancels the children of a run that ended, and wakes its parent if that waited for it. A failure here only
    /// delays both: the reconciler does the same.
    async fn settle_relatives(&self, grant: &Grant, committed: &Committed, trace: Option<&AttemptTrace>) {
        let (engine, tenant) = (&self.worker.engine, grant.fence.tenant);
        let origin = trace.map(AttemptTrace::origin);
        if committed.has_children {
            let reason = "the parent run has ended";
            match engine.store.cancel_children(tenant, grant.run.id, reason).await {
                Ok(cancelled) => {
                    self.dispatcher().announce_related(&cancelled.changes, origin).await;
                    for signal in cancelled.requested {
                        self.dispatcher().signal_cancel(signal).await;
                    }
                }
                Err(error) => {
                    tracing::warn!(error = error.chain(), "cannot cancel children; the reconciler will");
                }
            }
        }
        if let Some(parent) = committed.parent {
            match engine.store.resume_if_ready(tenant, parent).await {
                Ok(change) => self.dispatcher().announce_related(change.as_slice(), origin).await,
                Err(error) => {
                    tracing::warn!(%parent, error = error.chain(), "cannot settle the parent; the reconciler will");
                }
            }
        }
    }

    /// Commits and publishes the result. Retries until the store responds: commits are idempotent.
    async fn commit(&self, commit: &Commit, trace: Option<&AttemptTrace>) -> Result<Committed> {
        self.dispatcher().commit(commit, trace.map(AttemptTrace::run), &self.abandon).await
    }

    /// Releases the session whatever its state, so that another worker can continue immediately. A no-op under an old
    /// fence.
    ///
    /// Retried until it succeeds: as long as this worker's lease is alive, no other worker can claim the session.
    async fn release(&self, fence: Fence) -> SessionOutcome {
        let mut pause = FIRST_RELEASE_PAUSE;
        while !self.lost.is_cancelled() {
            match retry_until_abandoned(&self.lost, || self.worker.engine.store.release(fence)).await {
                Ok(change) => {
                    self.dispatcher().publish(&change, None).await;
                    return SessionOutcome::Released;
                }
                Err(error) if error.code() == Code::OwnershipLost => {
                    tracing::warn!(error = error.chain(), "session is owned by another worker");
                    return SessionOutcome::Lost;
                }
                Err(error) => {
                    tracing::error!(error = error.chain(), "cannot release the session; retrying");
                    drop(timeout(pause, self.lost.cancelled()).await);
                    pause = (pause * 2).min(MAX_RELEASE_PAUSE);
                }
            }
        }
        SessionOutcome::Lost
    }
}

/// Replaces an end that the store rejects by a plain failure. Another attempt would end the same way and be rejected
/// too.
fn bare_failure(rejected: &Commit, error: &Error) -> Commit {
    tracing::error!(error = error.chain(), "store rejected the end of the run; failing the run");
    let failure = Failure::new(Code::Internal, format!("the end of the run could not be stored: {error}"));
    let end = RunEnd { state: RunState::Failed, outcomes: Vec::new(), failure: Some(failure) };
    let then = match &rejected.then {
        RunTransition::End(finish) => {
            RunTransition::End(Finish { end, stopped_ago: None, agent: None, ..finish.clone() })
        }
        other => other.clone(),
    };
    Commit::new(rejected.fence, rejected.run, then)
}

#[cfg(test)]
mod tests;
