//! The reconciler: background tasks that repair what crashes and lost messages left behind.
//!
//! Each [task](background_task::BackgroundTask) is idempotent, takes no input, starts by itself, and shows its last result in the
//! store and in metrics. One control plane at a time runs the tasks; a lease in the store decides which. A task that fails
//! does not stop the others.
//!
//! | module | name in the store and in metrics | runs at least | and at once when |
//! | --- | --- | --- | --- |
//! | `reclaim_sessions` | `take_back` | every interval | a worker's lease could end |
//! | `resume_ready` | same | every interval | |
//! | `expire_approvals` | same | every interval | an approval expires |
//! | `stop_orphans` | same | every interval | |
//! | `wake_sessions` | same | every interval | a wake-up failed, or the transport is back |
//! | `redeliver_lost_grants` | `find_unheld` | every interval | |
//! | `heal_orphans` | same | every interval | |
//! | `repair_transport` | `mend_transport` | every interval | |
//! | `delete_expired_keys` | same | every minute | |
//! | `trim_events` | same | every minute | a round left rows for the next one |
//! | `gc` | same | every minute | a round left rows for the next one |
//! | `report_queue_metrics` | `tell_queues` | every 5 s, with metrics enabled | |
//!
//! The leading process also delivers to [webhooks](crate::webhooks).

mod background_task;
mod delete_expired_keys;
mod expire_approvals;
mod gc;
mod heal_orphans;
mod leadership;
mod paged_scan;
mod reclaim_sessions;
mod redeliver_lost_grants;
mod repair_transport;
mod report_queue_metrics;
mod resume_ready;
mod stop_orphans;
mod task_driver;
mod task_record;
mod token_sweep;
mod transport_watch;
mod trim_events;
mod wake_sessions;

use std::{sync::Arc, time::Duration};

use remuda_domain::WorkerId;
use remuda_telemetry::metrics;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument as _;

pub(crate) use self::leadership::Term;
use self::{
    background_task::BackgroundTask, delete_expired_keys::DeleteExpiredKeys,
    expire_approvals::ExpireApprovals, gc::Gc, heal_orphans::HealOrphans, leadership::Leadership,
    paged_scan::PagedScan, reclaim_sessions::ReclaimSessions, redeliver_lost_grants::RedeliverLostGrants,
    repair_transport::RepairTransport, report_queue_metrics::ReportQueueMetrics, resume_ready::ResumeReady,
    stop_orphans::StopOrphans, task_driver::Driver, task_record::Recorder, trim_events::TrimEvents,
    wake_sessions::WakeSessions,
};
use crate::{app::App, webhooks::Deliverer};

#[derive(Clone, Debug)]
pub struct ReconcilerOptions {
    /// Host name of this process, shown to operators.
    pub host: String,
    /// Most tasks run at least this often.
    pub interval: Duration,
    /// Duration of the leader's lease: how long others wait after a leader has crashed.
    pub lease: Duration,
    /// How long events of finished runs are kept. Zero keeps them for ever.
    pub events_kept: Duration,
    /// The same for runs after their end, and for sessions after their last use.
    pub runs_kept: Duration,
    pub sessions_kept: Duration,
}

/// Runs the background tasks while this process leads.
#[derive(Debug)]
pub struct Reconciler {
    app: App,
    options: ReconcilerOptions,
    holder: String,
}

impl Reconciler {
    #[must_use]
    pub fn new(app: &App, options: ReconcilerOptions) -> Self {
        Self { app: app.clone(), holder: holder(&options.host), options }
    }

    fn tasks(&self) -> Vec<Box<dyn BackgroundTask>> {
        let pace = self.options.interval;
        let (store, transport) = (self.app.store(), self.app.transport());
        let (dispatcher, announcer) = (self.app.dispatcher(), self.app.announcer());
        vec![
            Box::new(ReclaimSessions::new(Arc::clone(store), announcer.clone(), pace)),
            Box::new(ResumeReady {
                store: Arc::clone(store),
                announcer: announcer.clone(),
                pace,
                scan: PagedScan::default(),
            }),
            Box::new(ExpireApprovals { store: Arc::clone(store), announcer: announcer.clone(), pace }),
            Box::new(StopOrphans {
                store: Arc::clone(store),
                app: self.app.clone(),
                pace,
                scan: PagedScan::default(),
            }),
            Box::new(WakeSessions::new(
                Arc::clone(store),
                Arc::clone(transport),
                dispatcher.clone(),
                self.app.lost_wakeups().clone(),
                pace,
            )),
            Box::new(RedeliverLostGrants {
                store: Arc::clone(store),
                transport: Arc::clone(transport),
                pace,
                granted_ago: redeliver_lost_grants::GRANTED_AGO,
                after: None,
            }),
            Box::new(HealOrphans::new(Arc::clone(store), Arc::clone(transport), dispatcher.clone(), pace)),
            Box::new(RepairTransport { transport: Arc::clone(transport), pace }),
            Box::new(DeleteExpiredKeys { store: Arc::clone(store) }),
            Box::new(TrimEvents { store: Arc::clone(store), kept: self.options.events_kept, after: None }),
            Box::new(Gc::new(Arc::clone(store), &self.options)),
        ]
    }

    /// Runs until `stop`, then releases the lease.
    pub async fn run(self, stop: CancellationToken) {
        let store = self.app.store();
        let ReconcilerOptions { interval, lease, .. } = self.options;
        let (leadership, term) = Leadership::new(Arc::clone(store), self.holder.clone(), lease, interval);
        let tracker = TaskTracker::new();
        let mut tasks = self.tasks();
        if metrics::is_installed() {
            tasks.push(Box::new(ReportQueueMetrics::new(Arc::clone(store), term.clone(), interval)));
        }
        for task in tasks {
            let recorder = Recorder::new(Arc::clone(store), self.holder.clone());
            let span = tracing::error_span!("task", task = task.name());
            tracker.spawn(Driver { term: term.clone(), recorder }.run(task, stop.clone()).instrument(span));
        }
        tracker.spawn(Deliverer::new(&self.app, term, interval).run(stop.clone()));
        let (transport, lost_wakeups) = (Arc::clone(self.app.transport()), self.app.lost_wakeups().clone());
        tracker.spawn(transport_watch::watch(transport, lost_wakeups, stop.clone()));
        leadership.keep(&stop).await;
        tracker.close();
        tracker.wait().await;
        leadership.step_down().await;
    }
}

/// A unique name of this process that contains its host.
fn holder(host: &str) -> String {
    let id = WorkerId::new().to_string();
    // The last characters of an id are random.
    let unique: String = id.chars().skip(id.chars().count().saturating_sub(8)).collect();
    format!("{host}/{unique}")
}

#[cfg(test)]
mod tests;
