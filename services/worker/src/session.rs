//! One session in hand: claim, execute, release, look once more.

use std::{sync::Arc, time::Duration};

use remuda_domain::{Fence, WorkerId, error::Result};
use remuda_engine::{Ending, Execution, RunControl, patiently};
use remuda_store::{Claim, Commit, Committed, Finish, Grant};
use remuda_transport::Token;
use tokio_util::sync::CancellationToken;

use crate::{
    Worker,
    held::{Held, Hold},
};

/// A claim that fails is tried again after this.
const RETRY: Duration = Duration::from_secs(1);
/// The owner's release may come any moment before its lease ends, so a refused token is not put aside for longer.
const LONGEST_REFUSAL: Duration = Duration::from_secs(15);

/// What the tasks of one life share.
#[derive(Debug)]
pub(crate) struct SessionServer {
    pub(crate) worker: Arc<Worker>,
    pub(crate) id: WorkerId,
    pub(crate) held: Held,
    pub(crate) drain: CancellationToken,
    pub(crate) abandon: CancellationToken,
    /// The lease is lost: nothing may be said of any session any more.
    pub(crate) lost: CancellationToken,
}

/// How the work on a session ended.
#[derive(Debug, PartialEq, Eq)]
enum Left {
    /// The session is nobody's now.
    Released,
    /// It is, or may be, someone else's. A late ack or nak would hit the new owner's token, so nothing is sent.
    Lost,
}

impl SessionServer {
    /// Does what a token asks for.
    pub(crate) async fn serve(&self, token: Box<dyn Token>) {
        let (tenant, session) = (token.tenant(), token.session());
        let Some(hold) = self.held.take(session) else {
            self.put_back(token, RETRY).await;
            return;
        };
        // Tried again by this worker, not by another: the answer to a grant may be what was lost.
        let store = &self.worker.engine.store;
        let claimed = patiently(&self.abandon, || store.claim(tenant, session, self.id)).await;
        match claimed {
            Ok(Claim::Granted(grant)) => {
                let left = self.work_keeping(token.as_ref(), &hold, *grant).await;
                drop(hold);
                if left == Left::Released {
                    self.finish_and_look_again(token).await;
                }
            }
            Ok(Claim::NothingToDo) => {
                drop(hold);
                self.finish_and_look_again(token).await;
            }
            Ok(Claim::Refused { owner, retry_after }) => {
                tracing::debug!(%session, %owner, "the session has a live owner");
                self.put_back(token, retry_after.clamp(Duration::from_millis(100), LONGEST_REFUSAL)).await;
            }
            Err(error) => {
                tracing::warn!(%session, error = error.chain(), "the session could not be claimed");
                self.put_back(token, RETRY).await;
            }
        }
    }

    async fn put_back(&self, token: Box<dyn Token>, delay: Duration) {
        let session = token.session();
        if let Err(error) = token.retry_after(delay).await {
            tracing::debug!(%session, error = error.chain(), "the token will come back by itself");
        }
    }

    /// Removes the token, *then* looks for a run. A submit that was refused because of this token committed before the
    /// token was gone, so the look sees it: no wake-up is lost.
    async fn finish_and_look_again(&self, token: Box<dyn Token>) {
        let (tenant, session) = (token.tenant(), token.session());
        if let Err(error) = token.finish().await {
            tracing::debug!(%session, error = error.chain(), "the token may come back once more");
        }
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
            tracing::warn!(%session, error = error.chain(), "a waiting session is left to the reconciler");
        }
    }

    /// Works on the session while keeping its token alive.
    async fn work_keeping(&self, token: &dyn Token, hold: &Hold, grant: Grant) -> Left {
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
            left = self.work(hold, grant) => left,
            () = keep_alive => Left::Lost,
        }
    }

    /// Executes the granted run, then the next ones of the session, until none waits or the turn is over.
    async fn work(&self, hold: &Hold, mut grant: Grant) -> Left {
        let fence = grant.fence;
        let mut runs = 0;
        loop {
            let control = RunControl {
                cancel: hold.begin(grant.run.id),
                drain: self.drain.clone(),
                abandon: self.abandon.clone(),
            };
            runs += 1;
            let ending = match self.worker.engine.execute(&grant, &control).await {
                Execution::Ended(ending) => ending,
                Execution::HandedOver | Execution::Abandoned => return self.let_go(fence).await,
            };
            let give_up = runs >= self.worker.options.turn || self.drain.is_cancelled();
            match self.commit(&grant, *ending, give_up).await {
                Ok(Committed { next: Some(next), .. }) => grant = *next,
                Ok(_) => return Left::Released,
                Err(error) => {
                    tracing::warn!(run = %grant.run.id, error = error.chain(), "the end of a run was not taken");
                    // The first try may have succeeded and only its answer been lost: then the session is still ours, with
                    // its next run. Released, it goes on anywhere; under an old fence, nothing happens.
                    return self.let_go(fence).await;
                }
            }
        }
    }

    async fn commit(&self, grant: &Grant, ending: Ending, give_up: bool) -> Result<Committed> {
        let commit = Commit {
            fence: grant.fence,
            run: grant.run.id,
            steps: ending.steps,
            messages: ending.messages,
            events: ending.events,
            end: Some(Finish { end: ending.end, started_at: ending.started_at, give_up }),
        };
        let engine = &self.worker.engine;
        let committed = patiently(&self.abandon, || engine.store.commit(commit.clone())).await?;
        engine.transport.publish_events(grant.fence.tenant, grant.fence.session, &committed.events).await;
        Ok(committed)
    }

    /// Gives a session up in the middle of a run, for another worker to go on at once.
    async fn let_go(&self, fence: Fence) -> Left {
        if self.lost.is_cancelled() {
            return Left::Lost;
        }
        match self.worker.engine.store.release(fence).await {
            Ok(()) => Left::Released,
            Err(error) => {
                tracing::warn!(session = %fence.session, error = error.chain(), "the session is lost");
                Left::Lost
            }
        }
    }
}
