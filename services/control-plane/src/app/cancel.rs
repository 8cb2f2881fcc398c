//! Stopping runs.

use futures::{StreamExt as _, stream};
use remuda_domain::{
    RunId, SessionId, TenantId, WorkerId, error::Result, identity::Principal, limits, worker::Signal,
};
use remuda_store::{CancelSignal, Cancelled, CancelledRuns, Reach};

use super::App;

/// Signals under way at once: one worker that cannot be told must not keep the others from hearing.
const SIGNALS: usize = 32;

/// What stands in the record when the caller gave no reason.
fn reason_of(caller: &Principal, reason: String) -> Result<String> {
    limits::check_text("reason", &reason, limits::MAX_REASON_CHARS)?;
    Ok(if reason.is_empty() { format!("cancelled by {}", caller.subject) } else { reason })
}

impl App {
    /// Asks for a run to stop.
    pub async fn cancel_run(&self, caller: &Principal, run: RunId, reason: String) -> Result<Cancelled> {
        let reason = reason_of(caller, reason)?;
        let (app, tenant) = (self.clone(), caller.tenant);
        self.to_the_end(async move {
            let cancelled = app.store.request_cancel(tenant, run, &reason).await?;
            app.waker.announce_change(cancelled.change.clone());
            if let Some(worker) = cancelled.signal {
                app.tell(CancelSignal { worker, session: cancelled.run.session, run }).await;
            }
            app.tell_all(&cancelled.below).await;
            Ok(cancelled)
        })
        .await
    }

    /// Asks for every unfinished run of a session, or of the tree below it, to stop.
    pub async fn cancel_session(
        &self,
        caller: &Principal,
        session: &str,
        reach: Reach,
        reason: String,
    ) -> Result<CancelledRuns> {
        let reason = reason_of(caller, reason)?;
        let (app, tenant) = (self.clone(), caller.tenant);
        let session = self.session_id(caller, session).await?;
        self.to_the_end(async move { app.cancel_reach(tenant, session, reach, &reason).await }).await
    }

    /// Cancels, and tells those who have to know. For callers that run to the end.
    pub(super) async fn cancel_reach(
        &self,
        tenant: TenantId,
        session: SessionId,
        reach: Reach,
        reason: &str,
    ) -> Result<CancelledRuns> {
        let cancelled = self.store.cancel_session(tenant, session, reach, reason).await?;
        self.tell_all(&cancelled).await;
        Ok(cancelled)
    }

    /// Announces what a cancel of many runs changed, and tells the workers of those that execute.
    pub(crate) async fn tell_all(&self, cancelled: &CancelledRuns) {
        for change in &cancelled.changes {
            self.waker.announce_change(change.clone());
        }
        stream::iter(&cancelled.requested).for_each_concurrent(SIGNALS, |signal| self.tell(*signal)).await;
    }

    async fn tell(&self, CancelSignal { worker, session, run }: CancelSignal) {
        self.signal(worker, Signal::Cancel { session, run }).await;
    }

    /// A lost signal is only a late one: the worker finds the same wish in the store.
    pub(super) async fn signal(&self, worker: WorkerId, signal: Signal) {
        if let Err(error) = self.transport.send_signal(worker, &signal).await {
            tracing::warn!(%worker, error = error.chain(), "a signal could not be sent");
        }
    }
}
