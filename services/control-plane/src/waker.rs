//! Tells the fleet what was committed: wakes workers, publishes live events.
//!
//! Callers do not wait for it. What is lost here (a full queue, a transport that is down, a crash) is only late: the
//! reconciler, which hears the [`Alarm`], wakes every runnable session, and readers find events in the store.

use std::sync::Arc;

use futures::StreamExt as _;
use remuda_domain::{Event, Pool, SessionId, TenantId};
use remuda_store::SessionChange;
use remuda_transport::Transport;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::TaskTracker;

use crate::alarm::Alarm;

const QUEUE: usize = 16_384;
/// Announcements under way at once: a publish waits for the broker, the next one need not wait for it.
const IN_FLIGHT: usize = 256;

#[derive(Debug)]
struct Announcement {
    tenant: TenantId,
    session: SessionId,
    /// The pool to wake, if any.
    wake: Option<Pool>,
    events: Vec<Event>,
}

/// Handle to the announcing task. Cheap to clone; the task ends when the last handle is gone.
#[derive(Clone, Debug)]
pub(crate) struct Waker {
    queue: mpsc::Sender<Announcement>,
    alarm: Alarm,
}

impl Waker {
    pub(crate) fn start(tracker: &TaskTracker, transport: Arc<dyn Transport>, alarm: Alarm) -> Self {
        let (queue, receiver) = mpsc::channel(QUEUE);
        let ring = alarm.clone();
        tracker.spawn(ReceiverStream::new(receiver).for_each_concurrent(IN_FLIGHT, move |announcement| {
            let (transport, ring) = (Arc::clone(&transport), ring.clone());
            async move { announce(transport.as_ref(), announcement, &ring).await }
        }));
        Self { queue, alarm }
    }

    /// Announces what a commit did to a session.
    pub(crate) fn announce(
        &self,
        tenant: TenantId,
        session: SessionId,
        wake: Option<Pool>,
        events: Vec<Event>,
    ) {
        if wake.is_none() && events.is_empty() {
            return;
        }
        let wakes = wake.is_some();
        if self.queue.try_send(Announcement { tenant, session, wake, events }).is_err() && wakes {
            tracing::warn!(%session, "the announcement queue is full; the reconciler will wake the session");
            self.alarm.ring();
        }
    }

    pub(crate) fn announce_change(&self, change: SessionChange) {
        let SessionChange { tenant, session, pool, wake, events } = change;
        self.announce(tenant, session, wake.then_some(pool), events);
    }
}

async fn announce(transport: &dyn Transport, announcement: Announcement, alarm: &Alarm) {
    let Announcement { tenant, session, wake, events } = announcement;
    if let Some(pool) = wake
        && let Err(error) = transport.publish_token(&pool, tenant, session).await
    {
        tracing::warn!(%session, error = error.chain(), "a session could not be woken; the reconciler will");
        alarm.ring();
    }
    if !events.is_empty() {
        transport.publish_events(tenant, session, &events).await;
    }
}
