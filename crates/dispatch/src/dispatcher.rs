//! Commits an owner's progress, and announces committed changes: tokens, live events, spans.
//!
//! What is lost here is only delayed: the reconciler publishes tokens again, and readers find events in the store.

use std::{fmt, sync::Arc};

use chrono::Utc;
use remuda_domain::{
    Pool, SessionId, TenantId, WorkerId,
    error::Result,
    trace::{SpanId, TraceContext},
    worker::Signal,
};
use remuda_store::{CancelSignal, Commit, Committed, SessionChange, Store};
use remuda_telemetry::spans::{Span, SpanKind, emit};
use remuda_trace::{RunTrace, emit_unreported};
use remuda_transport::{Published, Transport};
use tokio_util::sync::CancellationToken;

use crate::{Slots, retry_until_abandoned};

/// Wakes workers and readers. Cheap to clone.
#[derive(Clone)]
pub struct Dispatcher {
    store: Arc<dyn Store>,
    transport: Arc<dyn Transport>,
    slots: Slots,
}

impl fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dispatcher").field("slots", &self.slots).finish_non_exhaustive()
    }
}

impl Dispatcher {
    /// `slots` are those that the store was opened with.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, transport: Arc<dyn Transport>, slots: Slots) -> Self {
        Self { store, transport, slots }
    }

    /// The slots to which submits of this process grant sessions.
    #[must_use]
    pub fn slots(&self) -> &Slots {
        &self.slots
    }

    /// Commits the progress or the end of a run, and announces it. Retries an unavailable store until `abandon`:
    /// commits are idempotent. `trace` is the run's trace, if it is collected.
    pub async fn commit(
        &self,
        commit: &Commit,
        trace: Option<&RunTrace>,
        abandon: &CancellationToken,
    ) -> Result<Committed> {
        let begun = Utc::now();
        let committed = retry_until_abandoned(abandon, || self.store.commit(commit.clone())).await?;
        if let Some(trace) = trace {
            trace.emit_commit(commit, begun, Utc::now());
        }
        let (fence, origin) = (commit.fence, trace.map(RunTrace::run));
        self.transport.publish_events_from(fence.tenant, fence.session, &committed.events, origin).await;
        self.announce_related(&committed.children, origin).await;
        Ok(committed)
    }

    /// Announces a change: wakes a worker if the session needs one, publishes the events, and emits spans that no worker
    /// will report. `origin` is the run that the change is about, if it is traced. Fails if no token could be
    /// published; the rest is done anyway.
    pub async fn announce(&self, change: &SessionChange, origin: Option<TraceContext>) -> Result<()> {
        let woken = match change.wake {
            true => self.wake(&change.pool, change.tenant, change.session, origin).await.map(drop),
            false => Ok(()),
        };
        self.publish(change, origin).await;
        woken
    }

    /// Announces the changes of related runs: children, or a parent. `relative` is the run they are related to, if it
    /// is traced; they share its trace.
    pub async fn announce_related(&self, changes: &[SessionChange], relative: Option<TraceContext>) {
        for change in changes {
            let run = change.events.iter().find_map(|event| event.run);
            let origin = relative.zip(run).map(|(relative, run)| relative.with_span(SpanId::of_run(run)));
            if let Err(error) = self.announce(change, origin).await {
                tracing::warn!(session = %change.session, error = error.chain(),
                    "token publish failed; the reconciler will retry");
            }
        }
    }

    /// Publishes the events of a change, for a caller that works on the session itself.
    pub async fn publish(&self, change: &SessionChange, origin: Option<TraceContext>) {
        let SessionChange { tenant, session, events, .. } = change;
        self.transport.publish_events_from(*tenant, *session, events, origin).await;
        emit_unreported(&*self.store, change).await;
    }

    /// Publishes the session's token. For a traced run the token carries the span of its publish.
    pub async fn wake(
        &self,
        pool: &Pool,
        tenant: TenantId,
        session: SessionId,
        origin: Option<TraceContext>,
    ) -> Result<Published> {
        let Some(run) = origin else {
            return self.transport.publish_token(pool, tenant, session).await;
        };
        let (begun, place) = (Utc::now(), run.with_span(SpanId::random()));
        let published = self.transport.publish_token_from(pool, tenant, session, Some(place)).await;
        let failure = published.as_ref().err().map(ToString::to_string);
        let span = Span::below(run, place.span, "publish token", (begun, Utc::now()));
        emit(span.kind(SpanKind::Producer).failed(failure));
        published
    }

    /// Publishes a token if a run of the session could start and no worker owns it.
    pub async fn wake_if_runnable(&self, pool: &Pool, tenant: TenantId, session: SessionId) -> Result<()> {
        match self.store.is_runnable(tenant, session).await? {
            true => self.wake(pool, tenant, session, None).await.map(drop),
            false => Ok(()),
        }
    }

    /// Signals the owner of a run that was asked to cancel.
    pub async fn signal_cancel(&self, CancelSignal { worker, session, run }: CancelSignal) {
        self.signal(worker, Signal::Cancel { session, run }).await;
    }

    /// Sends a signal, best effort: the worker also finds the request in the store.
    pub async fn signal(&self, worker: WorkerId, signal: Signal) {
        if let Err(error) = self.transport.send_signal(worker, &signal).await {
            tracing::warn!(to = %worker, error = error.chain(),
                "sending a signal failed; the worker will read the request from the store");
        }
    }
}
