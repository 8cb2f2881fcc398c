//! Tells the fleet what was committed: wakes workers, publishes live events.
//!
//! Callers do not wait for it. What is lost here (a full queue, a transport that is down, a crash) is only late: the
//! reconciler, which hears the [`Alarm`], wakes every runnable session, and readers find events in the store.

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
use remuda_trace::settled;
use remuda_transport::Transport;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::TaskTracker;

use crate::{alarm::Alarm, app::Named};

const QUEUE: usize = 16_384;
/// Announcements under way at once: a publish waits for the broker, the next one need not wait for it.
const IN_FLIGHT: usize = 256;

#[derive(Debug)]
struct Announcement {
    change: SessionChange,
    /// The run that the change is about, if its trace is collected.
    origin: Option<TraceContext>,
}

/// Handle to the announcing task. Cheap to clone; the task ends when the last handle is gone.
#[derive(Clone)]
pub(crate) struct Waker {
    queue: mpsc::Sender<Announcement>,
    alarm: Alarm,
    /// Those in this process who wait for runs.
    waiting: Arc<Named>,
}

impl Waker {
    pub(crate) fn start(
        tracker: &TaskTracker,
        store: &Arc<dyn Store>,
        transport: &Arc<dyn Transport>,
        alarm: Alarm,
        waiting: Arc<Named>,
    ) -> Self {
        let (queue, receiver) = mpsc::channel(QUEUE);
        let (store, transport, ring) = (Arc::clone(store), Arc::clone(transport), alarm.clone());
        tracker.spawn(ReceiverStream::new(receiver).for_each_concurrent(IN_FLIGHT, move |announcement| {
            let (store, transport, ring) = (Arc::clone(&store), Arc::clone(&transport), ring.clone());
            async move { announce(&*store, &*transport, announcement, &ring).await }
        }));
        Self { queue, alarm, waiting }
    }

    /// Announces what a commit did to a session. `origin` is the run that it is about, if its trace is collected.
    pub(crate) fn announce(&self, change: SessionChange, origin: Option<TraceContext>) {
        if !change.wake && change.events.is_empty() {
            return;
        }
        self.waiting.note(&change.events);
        let (session, wakes) = (change.session, change.wake);
        if self.queue.try_send(Announcement { change, origin }).is_err() && wakes {
            tracing::warn!(%session, "the announcement queue is full; the reconciler will wake the session");
            self.alarm.ring();
        }
    }

    /// Tells readers of a session of events that wake nobody.
    pub(crate) fn announce_events(&self, tenant: TenantId, session: SessionId, events: Appended) {
        let pool = Pool::default();
        self.announce(SessionChange { tenant, session, pool, wake: false, events, lost: None }, None);
    }

    pub(crate) fn announce_change(&self, change: SessionChange) {
        self.announce(change, None);
    }
}

async fn announce(store: &dyn Store, transport: &dyn Transport, announcement: Announcement, alarm: &Alarm) {
    let Announcement { change, origin } = announcement;
    let session = change.session;
    if change.wake
        && let Err(error) = wake(transport, &change, origin).await
    {
        tracing::warn!(%session, error = error.chain(), "a session could not be woken; the reconciler will");
        alarm.ring();
    }
    if !change.events.is_empty() {
        transport.publish_events(change.tenant, session, &change.events).await;
    }
    settled(store, &change).await;
}

/// Publishes the session's token, which carries the span that tells of it.
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
