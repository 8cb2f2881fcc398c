//! Tells the fleet what was committed: wakes workers, publishes live events.
//!
//! Callers do not wait for it. What is lost here (a full queue, a transport that is down, a crash) is only late: the
//! reconciler wakes every runnable session, and readers find events in the store.

use std::sync::Arc;

use futures::StreamExt as _;
use remuda_domain::{Event, Pool, SessionId, TenantId};
use remuda_transport::Transport;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::TaskTracker;

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
pub struct Waker {
    queue: mpsc::Sender<Announcement>,
}

impl Waker {
    pub fn start(tracker: &TaskTracker, transport: Arc<dyn Transport>) -> Self {
        let (queue, receiver) = mpsc::channel(QUEUE);
        tracker.spawn(ReceiverStream::new(receiver).for_each_concurrent(IN_FLIGHT, move |announcement| {
            let transport = Arc::clone(&transport);
            async move { announce(transport.as_ref(), announcement).await }
        }));
        Self { queue }
    }

    /// Announces what a commit did to a session.
    pub fn announce(&self, tenant: TenantId, session: SessionId, wake: Option<Pool>, events: Vec<Event>) {
        if wake.is_none() && events.is_empty() {
            return;
        }
        if self.queue.try_send(Announcement { tenant, session, wake, events }).is_err() {
            tracing::warn!(%session, "the announcement queue is full; the reconciler will wake the session");
        }
    }
}

async fn announce(transport: &dyn Transport, announcement: Announcement) {
    let Announcement { tenant, session, wake, events } = announcement;
    if let Some(pool) = wake
        && let Err(error) = transport.publish_token(&pool, tenant, session).await
    {
        tracing::warn!(%session, error = error.chain(), "a session could not be woken; the reconciler will");
    }
    if !events.is_empty() {
        transport.publish_events(tenant, session, &events).await;
    }
}
