//! Announces committed changes: publishes session tokens and live events.
//!
//! Callers do not wait for it. What is lost here (a full queue, a transport that is down, a crash) is only delayed: the
//! reconciler wakes every runnable session when [`LostWakeups`] is set, and readers find events in the store.

use std::sync::Arc;

use chrono::Utc;
use futures::StreamExt as _;
use remuda_domain::{
    Appended, Pool, SessionId, TenantId,
    error::Result,
    trace::{SpanId, TraceContext},
};
use remuda_store::{SessionChange, Store};
use remuda_telemetry::spans::{Span, SpanKind, emit};
use remuda_trace::emit_unreported;
use remuda_transport::Transport;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::TaskTracker;

use crate::{app::DirectWaiters, lost_wakeups::LostWakeups};

const QUEUE: usize = 16_384;
/// Concurrent announcements: a publish waits for the broker, and the next one need not wait for it.
const IN_FLIGHT: usize = 256;

#[derive(Debug)]
struct Announcement {
    change: SessionChange,
    /// The run that the change is about, if it is traced.
    origin: Option<TraceContext>,
}

/// Handle to the announcing task. Cheap to clone; the task ends when the last handle is gone.
#[derive(Clone)]
pub(crate) struct Announcer {
    queue: mpsc::Sender<Announcement>,
    lost_wakeups: LostWakeups,
    direct_waiters: Arc<DirectWaiters>,
}

impl Announcer {
    pub(crate) fn start(
        tracker: &TaskTracker,
        store: &Arc<dyn Store>,
        transport: &Arc<dyn Transport>,
        lost_wakeups: LostWakeups,
        direct_waiters: Arc<DirectWaiters>,
    ) -> Self {
        let (queue, receiver) = mpsc::channel(QUEUE);
        let (store, transport, lost) = (Arc::clone(store), Arc::clone(transport), lost_wakeups.clone());
        tracker.spawn(ReceiverStream::new(receiver).for_each_concurrent(IN_FLIGHT, move |announcement| {
            let (store, transport, lost) = (Arc::clone(&store), Arc::clone(&transport), lost.clone());
            async move { announce(&*store, &*transport, announcement, &lost).await }
        }));
        Self { queue, lost_wakeups, direct_waiters }
    }

    /// Announces what a commit did to a session. `origin` is the run that it is about, if it is traced.
    pub(crate) fn announce(&self, change: SessionChange, origin: Option<TraceContext>) {
        if !change.wake && change.events.is_empty() {
            return;
        }
        self.direct_waiters.observe(&change.events);
        let (session, wakes) = (change.session, change.wake);
        if self.queue.try_send(Announcement { change, origin }).is_err() && wakes {
            tracing::warn!(%session, "announcement queue full; the reconciler will wake the session");
            self.lost_wakeups.report();
        }
    }

    /// Publishes events of a session that need no worker.
    pub(crate) fn announce_events(&self, tenant: TenantId, session: SessionId, events: Appended) {
        let pool = Pool::default();
        self.announce(SessionChange { tenant, session, pool, wake: false, events, lost: None }, None);
    }

    pub(crate) fn announce_change(&self, change: SessionChange) {
        self.announce(change, None);
    }
}

async fn announce(
    store: &dyn Store,
    transport: &dyn Transport,
    announcement: Announcement,
    lost: &LostWakeups,
) {
    let Announcement { change, origin } = announcement;
    let session = change.session;
    if change.wake
        && let Err(error) = wake(transport, &change, origin).await
    {
        tracing::warn!(%session, error = error.chain(), "token publish failed; the reconciler will wake the session");
        lost.report();
    }
    if !change.events.is_empty() {
        transport.publish_events(change.tenant, session, &change.events).await;
    }
    emit_unreported(store, &change).await;
}

/// Publishes the session's token. For a traced run the token carries the span of its publish.
async fn wake(transport: &dyn Transport, change: &SessionChange, origin: Option<TraceContext>) -> Result<()> {
    let SessionChange { tenant, session, pool, .. } = change;
    let Some(run) = origin else {
        return transport.publish_token(pool, *tenant, *session).await.map(drop);
    };
    let (begun, place) = (Utc::now(), run.with_span(SpanId::random()));
    let published = transport.publish_token_from(pool, *tenant, *session, Some(place)).await;
    let failure = published.as_ref().err().map(ToString::to_string);
    let span = Span::below(run, place.span, "publish token", (begun, Utc::now()));
    emit(span.kind(SpanKind::Producer).failed(failure));
    published.map(drop)
}
