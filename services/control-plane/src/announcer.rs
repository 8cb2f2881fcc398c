//! Queues the announcements of committed changes for the [`Dispatcher`].
//!
//! Callers do not wait for it. What is lost here (a full queue, a transport that is down, a crash) is only delayed: the
//! reconciler wakes every runnable session when [`LostWakeups`] is set, and readers find events in the store.

use std::sync::Arc;

use futures::StreamExt as _;
use remuda_dispatch::Dispatcher;
use remuda_domain::{Appended, Pool, SessionId, TenantId, trace::TraceContext};
use remuda_store::SessionChange;
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
        dispatcher: Dispatcher,
        lost_wakeups: LostWakeups,
        direct_waiters: Arc<DirectWaiters>,
    ) -> Self {
        let (queue, receiver) = mpsc::channel(QUEUE);
        let lost = lost_wakeups.clone();
        tracker.spawn(ReceiverStream::new(receiver).for_each_concurrent(IN_FLIGHT, move |announcement| {
            let (dispatcher, lost) = (dispatcher.clone(), lost.clone());
            async move {
                let Announcement { change, origin } = announcement;
                if let Err(error) = dispatcher.announce(&change, origin).await {
                    tracing::warn!(session = %change.session, error = error.chain(),
                        "token publish failed; the reconciler will wake the session");
                    lost.report();
                }
            }
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
