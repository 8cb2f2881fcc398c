//! End notices, sent in batches to control planes whose clients wait for a run. They share the connection with
//! tokens: both are urgent.

use std::{collections::HashMap, sync::Arc};

use parking_lot::{Mutex, MutexGuard};
use remuda_domain::{ControlPlaneId, run::RunEndNotice};

use super::{Shared, live_events::batches};

/// Maximum number of queued notices, for the case that nothing can be sent. Waiters without a notice poll the store.
const MAX_WAITING: usize = 16_384;

/// Queued end notices.
#[derive(Default)]
pub(super) struct Outbox(Mutex<PendingNotices>);

#[derive(Default)]
struct PendingNotices {
    ends: Vec<(ControlPlaneId, RunEndNotice)>,
    /// A task is publishing them.
    sender_running: bool,
}

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, PendingNotices> {
        self.0.lock()
    }

    /// Takes the queued notices. Returns `None`, and marks the task as ended, if there are none.
    fn take(&self) -> Option<Vec<(ControlPlaneId, RunEndNotice)>> {
        let mut waiting = self.lock();
        waiting.sender_running = !waiting.ends.is_empty();
        waiting.sender_running.then(|| std::mem::take(&mut waiting.ends))
    }
}

/// Queues a notice for the publishing task, which sends all that have accumulated in one batch.
pub(super) fn notify(shared: &Arc<Shared>, plane: ControlPlaneId, notice: RunEndNotice) {
    let mut waiting = shared.ends.lock();
    if waiting.ends.len() >= MAX_WAITING {
        return;
    }
    waiting.ends.push((plane, notice));
    if !std::mem::replace(&mut waiting.sender_running, true) {
        shared.tasks.spawn(publish_pending(Arc::clone(shared)));
    }
}

async fn publish_pending(shared: Arc<Shared>) {
    while let Some(ends) = shared.ends.take() {
        let mut by_plane: HashMap<ControlPlaneId, Vec<RunEndNotice>> = HashMap::new();
        for (plane, notice) in ends {
            by_plane.entry(plane).or_default().push(notice);
        }
        for (plane, notice) in by_plane {
            for payload in batches(&notice, shared.control.max_message()) {
                let subject = shared.subjects.ends(plane);
                let message = shared.envelope.seal(&subject, payload, None);
                if let Err(error) = shared.control.send("publish end notices", subject, message).await {
                    tracing::debug!(%plane, error = error.chain(), "cannot publish end notices; waiters will poll the store");
                }
            }
        }
    }
}
