//! One session in hand: claim, execute, release, look once more.

mod turn;

use std::{sync::Arc, time::Duration};

use remuda_domain::{
    Code, CommitId, Error, Fence, RunState, SessionId, TenantId, WorkerId,
    error::Result,
    run::{Failure, LastWords, RunEnd},
    worker::Signal,
};
use remuda_engine::{Execution, Gate, HandOver, RunControl, now, patiently, wake_all};
use remuda_store::{CancelSignal, Claim, Commit, Committed, Finish, Grant, SessionChange, Then};
use remuda_telemetry::metrics;
use remuda_trace::{AttemptEnd, settled};
use remuda_transport::Token;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span};

use self::turn::{Done, Saved, Turn};
use crate::{
    Worker, context,
    held::{Held, Hold},
    traced::{Arrival, Traced},
};

/// A claim that fails is tried again after this.
const RETRY: Duration = Duration::from_secs(1);
/// The owner's release may come any moment before its lease ends, so a refused token is not put aside for longer.
const LONGEST_REFUSAL: Duration = Duration::from_secs(15);
/// Between tries to give a session up that the store does not take.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How often a claim is repeated at once because a lost worker's hold had to be taken back first.
const CLAIMS_AT_ONCE: u32 = 3;

/// What the tasks of one life share.
#[derive(Debug)]
pub(crate) struct SessionServer {
    pub(crate) worker: Arc<Worker>,
    pub(crate) id: WorkerId,
    pub(crate) held: Held,
    pub(crate) drain: CancellationToken,
    /// The drain takes too long: running calls are killed and recorded as interrupted.
    pub(crate) interrupt: CancellationToken,
    pub(crate) abandon: CancellationToken,
    /// The lease is lost: nothing may be said of any session any more.
    pub(crate) lost: CancellationToken,
}

/// How the work on a session ended.
#[derive(Debug, PartialEq, Eq)]
enum Left {
    /// The session is nobody's now, as none of its runs waited when that was committed.
    Idle,
    /// The session is nobody's now, and its runs may wait.
    Released,
    /// It is, or may be, someone else's. A late ack or nak would hit the new owner's token, so nothing is sent.
    Lost,
}

impl SessionServer {
    /// Does what a token asks for.
    pub(crate) async fn serve(&self, token: Box<dyn Token>) {
        let (tenant, session) = (token.tenant(), token.session());
        let arrival = Arrival { origin: token.origin(), received: now() };
        let Some(hold) = self.held.take(session) else {
            self.put_back(token, RETRY).await;
            return;
        };
        let _busy = self.worker.meters.busy();
        match self.claim(tenant, session).await {
            Ok(Claim::Granted(grant)) => {
                let left = self.work_keeping(token.as_ref(), &hold, *grant, arrival).await;
                drop(hold);
                if left != Left::Lost {
                    self.finish_and_look_again(token).await;
                }
            }
            Ok(Claim::NothingToDo) => {
                drop(hold);
                self.finish_and_look_again(token).await;
            }
            Ok(Claim::TakenBack(_)) => self.put_back(token, RETRY).await,
            Ok(Claim::Refused { owner, retry_after }) => {
                tracing::debug!(%owner, "the session has a live owner");
                self.put_back(token, retry_after.clamp(Duration::from_millis(100), LONGEST_REFUSAL)).await;
            }
            Err(error) => {
                tracing::warn!(error = error.chain(), "the session could not be claimed");
                self.put_back(token, RETRY).await;
            }
        }
    }

    /// Works on a session that the store granted without being asked. No token is involved: whoever submits finds an owner, or wakes
    /// somebody. So there is nothing to look for, unless runs are left behind.
    pub(crate) async fn serve_granted(&self, hold: Hold, grant: Grant) {
        let _busy = self.worker.meters.busy();
        let fence = grant.fence;
        let left = Turn::new(self, &hold, &grant).run(grant, None).await;
        drop(hold);
        if left == Left::Released {
            self.look_again(fence.tenant, fence.session).await;
        }
    }

    /// Asks for a session that the store has recorded as this worker's, though nobody here knew: the grant was lost, or is too old.
    pub(crate) async fn claim_own(&self, tenant: TenantId, session: SessionId) -> Option<Grant> {
        match self.claim(tenant, session).await {
            Ok(Claim::Granted(grant)) => Some(*grant),
            // It is somebody else's by now, or there is nothing to do.
            Ok(_) => None,
            Err(error) => {
                tracing::warn!(error = error.chain(), "a session of this worker could not be claimed");
                None
            }
        }
    }

    /// Gives back what was granted here although there is no room for it.
    pub(crate) async fn decline(&self, fence: Fence) {
        tracing::debug!("there is no room for what was granted");
        if self.let_go(fence).await == Left::Released {
            self.look_again(fence.tenant, fence.session).await;
        }
    }

    /// Asks for a session that is in hand. Tried again by this worker, not by another: the answer to a grant may be what was lost.
    async fn claim(&self, tenant: TenantId, session: SessionId) -> Result<Claim> {
        let store = &self.worker.engine.store;
        let mut claims = 0;
        loop {
            claims += 1;
            let answer = patiently(&self.abandon, || store.claim(tenant, session, self.id)).await;
            self.worker.meters.claimed(&answer);
            match answer? {
                Claim::TakenBack(change) if claims < CLAIMS_AT_ONCE => {
                    tracing::info!("took the session back from a lost worker");
                    self.publish(&change).await;
                }
                Claim::Granted(grant) => {
                    self.held.claimed(&grant.fence);
                    return Ok(Claim::Granted(grant));
                }
                claim => return Ok(claim),
            }
        }
    }

    async fn publish(&self, change: &SessionChange) {
        let engine = &self.worker.engine;
        engine.transport.publish_events(change.tenant, change.session, &change.events).await;
        settled(&*engine.store, change).await;
    }

    async fn put_back(&self, token: Box<dyn Token>, delay: Duration) {
        if let Err(error) = token.retry_after(delay).await {
            tracing::debug!(error = error.chain(), "the token will come back by itself");
        }
    }

    /// Removes the token, *then* looks for a run. A submit that was refused because of this token committed before the
    /// token was gone, so the look sees it: no wake-up is lost.
    async fn finish_and_look_again(&self, token: Box<dyn Token>) {
        let (tenant, session) = (token.tenant(), token.session());
        if let Err(error) = token.finish().await {
            tracing::debug!(error = error.chain(), "the token may come back once more");
        }
        self.look_again(tenant, session).await;
    }

    /// Wakes somebody if a run of the session could start.
    async fn look_again(&self, tenant: TenantId, session: SessionId) {
        let engine = &self.worker.engine;
        let pool = &self.worker.options.pool;
        let again = async {
            if engine.store.is_runnable(tenant, session).await? {
                engine.transport.publish_token(pool, tenant, session).await?;
            }
            Ok(())
        };
        let looked: Result<()> = again.await;
        if let Err(error) = looked {
            tracing::warn!(error = error.chain(), "a waiting session is left to the reconciler");
        }
    }

    /// Works on the session while keeping its token alive.
    async fn work_keeping(&self, token: &dyn Token, hold: &Hold, grant: Grant, arrival: Arrival) -> Left {
        let keep_alive = async {
            let mut timer = tokio::time::interval(token.keep_alive_every());
            timer.tick().await;
            loop {
                timer.tick().await;
                if let Err(error) = token.keep_alive().await {
                    tracing::debug!(error = error.chain(), "a token could not be kept alive");
                }
            }
        };
        tokio::select! {
            left = Turn::new(self, hold, &grant).run(grant, Some(arrival)) => left,
            () = keep_alive => Left::Lost,
        }
    }

    /// Others could use the slot.
    fn is_crowded(&self) -> bool {
        self.worker.meters.busy_slots() >= self.worker.options.slots
    }

    async fn tell_trace(&self, traced: Option<Traced>, grant: &Grant, end: AttemptEnd) {
        if let Some(traced) = traced {
            traced.end(&*self.worker.engine.store, grant, end).await;
        }
    }

    /// Executes one run. A request to stop it is acknowledged in the store while its processes are being killed.
    async fn execute(&self, hold: &Hold, grant: Grant, gate: Gate, abandon: CancellationToken) -> Execution {
        tracing::debug!(attempt = grant.run.attempt, "a run begins, or goes on");
        let grant = &grant;
        let (cancel, tell_again) = hold.begin(grant.run.id);
        let control = RunControl {
            cancel: cancel.clone(),
            drain: self.drain.clone(),
            interrupt: self.interrupt.clone(),
            abandon,
            gate,
            tell_again,
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
                // The receipt of the request stands before the end that it led to.
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
        let noted = patiently(&self.abandon, || engine.store.cancel_delivered(fence, grant.run.id)).await;
        match noted {
            Ok(events) => engine.transport.publish_events(fence.tenant, fence.session, &events).await,
            // The run ended by itself before the request could be noted.
            Err(error) if error.code() == Code::OwnershipLost => {}
            Err(error) => {
                tracing::warn!(error = error.chain(), "a cancel could not be acknowledged");
            }
        }
    }

    /// Commits the ends of runs that came one behind the other, and tells of them.
    async fn save(&self, mut batch: Vec<Done>, wanted: u32) -> Saved {
        let begun = now();
        let span = batch.first().map_or_else(Span::none, |first| context::of_run(&first.grant.run));
        let outcome = self.save_together(&mut batch, wanted).instrument(span).await;
        if let Ok(committed) = &outcome {
            for done in batch.iter().take(committed.ended).skip(1) {
                done.traced.iter().for_each(|traced| traced.committed(&done.commit, begun));
            }
            for done in batch.iter().take(committed.ended) {
                if tracing::enabled!(tracing::Level::DEBUG) {
                    context::of_run(&done.grant.run).in_scope(|| tracing::debug!("a run has ended"));
                }
                self.worker.meters.ended(&done.grant, done.state, committed);
                self.tell_waiting(&done.grant, committed);
                if done.state == RunState::Cancelled {
                    self.tell_receipts(&done.grant).await;
                }
            }
            // Those behind have no relatives.
            if let Some(first) = batch.first() {
                self.tell_relatives(&first.grant, committed, first.traced.as_ref()).await;
            }
        }
        Saved { batch, outcome }
    }

    /// What the store does not take together it may take one by one: whoever comes behind is executed again.
    async fn save_together(&self, batch: &mut [Done], wanted: u32) -> Result<Committed> {
        let Some((first, others)) = batch.split_first_mut() else {
            return Err(Error::internal("there is nothing to save"));
        };
        first.commit.wanted = wanted;
        let refused = |error: &Error| !matches!(error.code(), Code::OwnershipLost | Code::Unavailable);
        if !others.is_empty() {
            let behind = others.iter().map(|done| done.commit.clone()).collect();
            let together = Commit { id: CommitId::new(), behind, ..first.commit.clone() };
            match self.commit(&together, first.traced.as_ref()).await {
                Err(error) if refused(&error) => {
                    tracing::warn!(error = error.chain(), "ends of runs were not taken together");
                }
                committed => return committed,
            }
        }
        match self.commit(&first.commit, first.traced.as_ref()).await {
            Err(error) if refused(&error) => {
                first.state = RunState::Failed;
                self.commit(&bare_failure(&first.commit, &error), first.traced.as_ref()).await
            }
            committed => committed,
        }
    }

    /// Tells how long it took to stop a run. When that was asked for is in the store alone.
    async fn tell_receipts(&self, grant: &Grant) {
        if !metrics::is_installed() {
            return;
        }
        if let Ok(run) = self.worker.engine.store.get_run(grant.fence.tenant, grant.run.id).await {
            self.worker.meters.stopped(&run);
        }
    }

    async fn give_back(
        &self,
        grant: &Grant,
        hand_over: HandOver,
        then: Then,
        traced: Option<&Traced>,
    ) -> Result<Committed> {
        let HandOver { entry, events } = hand_over;
        let commit = entry.into_commit(grant.fence, grant.run.id, events, then);
        let committed = self.commit(&commit, traced).await?;
        // It may have ended instead: someone asked it to, or its time was over.
        self.tell_waiting(grant, &committed);
        self.tell_relatives(grant, &committed, traced).await;
        Ok(committed)
    }

    /// Tells the control plane whose caller waits for a run, if that has ended.
    fn tell_waiting(&self, grant: &Grant, committed: &Committed) {
        let Some(plane) = grant.run.awaited_by else { return };
        if let Some(words) = LastWords::of(grant.run.id, &committed.events) {
            self.worker.engine.transport.tell_end(plane, words);
        }
    }

    /// A run that ended may be what its parent waits for, and nothing below it may live longer. What fails here is only late:
    /// the reconciler does the same.
    async fn tell_relatives(&self, grant: &Grant, committed: &Committed, traced: Option<&Traced>) {
        let (engine, tenant) = (&self.worker.engine, grant.fence.tenant);
        let origin = traced.map(Traced::origin);
        if committed.has_children {
            let reason = "the run that it worked for has ended";
            match engine.store.cancel_children(tenant, grant.run.id, reason).await {
                Ok(cancelled) => {
                    wake_all(&*engine.transport, &cancelled.changes, origin).await;
                    for change in &cancelled.changes {
                        settled(&*engine.store, change).await;
                    }
                    for CancelSignal { worker, session, run } in cancelled.requested {
                        self.signal(worker, &Signal::Cancel { session, run }).await;
                    }
                }
                Err(error) => {
                    tracing::warn!(error = error.chain(), "children are left to the reconciler");
                }
            }
        }
        if let Some(parent) = committed.parent {
            match engine.store.settle_parked(tenant, parent).await {
                Ok(change) => wake_all(&*engine.transport, change.as_slice(), origin).await,
                Err(error) => {
                    tracing::warn!(%parent, error = error.chain(), "a parent is left to the reconciler");
                }
            }
        }
    }

    async fn signal(&self, worker: WorkerId, signal: &Signal) {
        if let Err(error) = self.worker.engine.transport.send_signal(worker, signal).await {
            tracing::warn!(to = %worker, error = error.chain(), "a signal could not be sent");
        }
    }

    /// Commits, however often the store has to be asked: repeating does nothing twice.
    async fn commit(&self, commit: &Commit, traced: Option<&Traced>) -> Result<Committed> {
        let (engine, begun) = (&self.worker.engine, now());
        let committed = patiently(&self.abandon, || engine.store.commit(commit.clone())).await?;
        let Fence { tenant, session, .. } = commit.fence;
        if let Some(traced) = traced {
            traced.committed(commit, begun);
        }
        let origin = traced.map(Traced::origin);
        engine.transport.publish_events_from(tenant, session, &committed.events, origin).await;
        wake_all(&*engine.transport, &committed.children, origin).await;
        Ok(committed)
    }

    /// Gives a session up, whatever it is at, for another worker to go on at once. Under an old fence nothing happens.
    ///
    /// Tried until it works: as long as this worker lives, nobody else may have what the store believes to be its own.
    async fn let_go(&self, fence: Fence) -> Left {
        let mut pause = FIRST_PAUSE;
        while !self.lost.is_cancelled() {
            match patiently(&self.lost, || self.worker.engine.store.release(fence)).await {
                Ok(change) => {
                    self.publish(&change).await;
                    return Left::Released;
                }
                Err(error) if error.code() == Code::OwnershipLost => {
                    tracing::warn!(error = error.chain(), "the session is lost");
                    return Left::Lost;
                }
                Err(error) => {
                    tracing::error!(error = error.chain(), "a session cannot be given up");
                    drop(timeout(pause, self.lost.cancelled()).await);
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
        Left::Lost
    }
}

/// The end of a run whose real end the store refuses: whoever took it over would come to the same.
fn bare_failure(refused: &Commit, error: &Error) -> Commit {
    tracing::error!(error = error.chain(), "the store does not take how the run ended");
    let failure = Failure::new(Code::Internal, format!("how the run ended could not be stored: {error}"));
    let end = RunEnd { state: RunState::Failed, outcomes: Vec::new(), failure: Some(failure) };
    let then = match &refused.then {
        Then::End(finish) => Then::End(Finish { end, stopped_ago: None, agent: None, ..finish.clone() }),
        other => other.clone(),
    };
    Commit::new(refused.fence, refused.run, then)
}

#[cfg(test)]
mod tests;
