//! Cancelling runs.

use futures::{StreamExt as _, stream};
use remuda_domain::{RunId, SessionId, TenantId, error::Result, identity::Principal, limits};
use remuda_store::{CancelScope, CancelSignal, Cancelled, CancelledRuns};

use super::App;

/// Concurrent signals: one unreachable worker must not delay the others.
const MAX_SIGNALS: usize = 32;

/// The reason to store, also if the caller gave none.
fn reason_or_default(caller: &Principal, reason: String) -> Result<String> {
    limits::check_text("reason", &reason, limits::MAX_REASON_CHARS)?;
    Ok(if reason.is_empty() { format!("cancelled by {}", caller.subject) } else { reason })
}

impl App {
    /// Requests the cancellation of a run.
    pub async fn cancel_run(&self, caller: &Principal, run: RunId, reason: String) -> Result<Cancelled> {
        let reason = reason_or_default(caller, reason)?;
        let (app, tenant) = (self.clone(), caller.tenant);
        self.run_to_completion(async move {
            let cancelled = app.store.request_cancel(tenant, run, &reason).await?;
            app.announcer.announce_change(cancelled.change.clone());
            if let Some(worker) = cancelled.signal {
                let session = cancelled.run.session;
                app.dispatcher.signal_cancel(CancelSignal { worker, session, run }).await;
            }
            app.announce_cancelled(&cancelled.descendants).await;
            Ok(cancelled)
        })
        .await
    }

    /// Requests the cancellation of every unfinished run of a session, or of the tree below it.
    pub async fn cancel_session(
        &self,
        caller: &Principal,
        session: &str,
        scope: CancelScope,
        reason: String,
    ) -> Result<CancelledRuns> {
        let reason = reason_or_default(caller, reason)?;
        let (app, tenant) = (self.clone(), caller.tenant);
        let session = self.session_id(caller, session).await?;
        self.run_to_completion(async move { app.cancel_scope(tenant, session, scope, &reason).await }).await
    }

    /// Cancels and announces. Call it within [`App::run_to_completion`].
    pub(super) async fn cancel_scope(
        &self,
        tenant: TenantId,
        session: SessionId,
        scope: CancelScope,
        reason: &str,
    ) -> Result<CancelledRuns> {
        let cancelled = self.store.cancel_session(tenant, session, scope, reason).await?;
        self.announce_cancelled(&cancelled).await;
        Ok(cancelled)
    }

    /// Announces the changes of a cancellation, and signals the workers that execute affected runs.
    pub(crate) async fn announce_cancelled(&self, cancelled: &CancelledRuns) {
        for change in &cancelled.changes {
            self.announcer.announce_change(change.clone());
        }
        let signals = stream::iter(&cancelled.requested);
        signals.for_each_concurrent(MAX_SIGNALS, |signal| self.dispatcher.signal_cancel(*signal)).await;
    }
}
