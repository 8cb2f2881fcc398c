//! Mends what crashes and losses left behind, with small background tasks.
//!
//! Each [task](task::BackgroundTask) is idempotent, needs no input, runs by itself, and shows its last result in the store and
//! in metrics. One control plane at a time runs them, by a lease in the store. A task that fails does not stop the others.
//!
//! | task | runs at the latest | and at once when |
//! | --- | --- | --- |
//! | `take_back` | every interval | the next lease of a worker could end |
//! | `end_overdue` | every interval | |
//! | `resume_ready` | every interval | |
//! | `expire_approvals` | every interval | the next approval expires |
//! | `stop_orphans` | every interval | |
//! | `wake_sessions` | every interval | a wake-up could not be sent, or the transport is back |
//! | `find_unheld` | every interval | |
//! | `heal_orphans` | every interval | |
//! | `mend_transport` | every interval | |
//! | `delete_expired_keys` | every minute | |
//! | `trim_events` | every minute | a round left some for the next one |
//! | `gc` | every minute | a round left some for the next one |
//! | `tell_queues` | every five seconds, where there are metrics | |
//!
//! The process that leads also delivers to [webhooks](crate::webhooks).

mod delete_expired_keys;
mod driver;
mod end_overdue;
mod expire_approvals;
mod find_unheld;
mod gc;
mod heal_orphans;
mod leadership;
mod link;
mod mend_transport;
mod record;
mod resume_ready;
mod stop_orphans;
mod sweep;
mod take_back;
mod task;
mod tell_queues;
mod trim_events;
mod wake_sessions;
mod walk;

use std::{sync::Arc, time::Duration};

use remuda_domain::WorkerId;
use remuda_telemetry::metrics;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument as _;

pub(crate) use self::leadership::Term;
use self::{
    delete_expired_keys::DeleteExpiredKeys, driver::Driver, end_overdue::EndOverdue,
    expire_approvals::ExpireApprovals, find_unheld::FindUnheld, gc::Gc, heal_orphans::HealOrphans,
    leadership::Leadership, mend_transport::MendTransport, record::Recorder, resume_ready::ResumeReady,
    stop_orphans::StopOrphans, take_back::TakeBack, task::BackgroundTask, tell_queues::TellQueues,
    trim_events::TrimEvents, wake_sessions::WakeSessions, walk::Walk,
};
use crate::{app::App, webhooks::Deliverer};

#[derive(Clone, Debug)]
pub struct ReconcilerOptions {
    /// Where this process runs, for operators.
    pub host: String,
    /// Tasks look at least this often.
    pub interval: Duration,
    /// How long a leader that vanished keeps others waiting.
    pub lease: Duration,
    /// How long events of finished runs are kept. Zero: for ever.
    pub events_kept: Duration,
    /// The same for runs, after their end, and for sessions, after their last use.
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
        let waker = self.app.waker();
        vec![
            Box::new(TakeBack::new(Arc::clone(store), waker.clone(), pace)),
            Box::new(EndOverdue { store: Arc::clone(store), waker: waker.clone(), pace }),
            Box::new(ResumeReady {
                store: Arc::clone(store),
                waker: waker.clone(),
                pace,
                walk: Walk::default(),
            }),
            Box::new(ExpireApprovals { store: Arc::clone(store), waker: waker.clone(), pace }),
            Box::new(StopOrphans {
                store: Arc::clone(store),
                app: self.app.clone(),
                pace,
                walk: Walk::default(),
            }),
            Box::new(WakeSessions::new(
                Arc::clone(store),
                Arc::clone(transport),
                self.app.alarm().clone(),
                pace,
            )),
            Box::new(FindUnheld {
                store: Arc::clone(store),
                transport: Arc::clone(transport),
                pace,
                granted_ago: find_unheld::GRANTED_AGO,
                after: None,
            }),
            Box::new(HealOrphans::new(Arc::clone(store), Arc::clone(transport), pace)),
            Box::new(MendTransport { transport: Arc::clone(transport), pace }),
            Box::new(DeleteExpiredKeys { store: Arc::clone(store) }),
            Box::new(TrimEvents { store: Arc::clone(store), kept: self.options.events_kept, after: None }),
            Box::new(Gc::new(Arc::clone(store), &self.options)),
        ]
    }

    /// Runs until `stop`, and gives the lead up then.
    pub async fn run(self, stop: CancellationToken) {
        let store = self.app.store();
        let ReconcilerOptions { interval, lease, .. } = self.options;
        let (leadership, term) = Leadership::new(Arc::clone(store), self.holder.clone(), lease, interval);
        let tracker = TaskTracker::new();
        let mut tasks = self.tasks();
        if metrics::is_installed() {
            tasks.push(Box::new(TellQueues::new(Arc::clone(store), term.clone(), interval)));
        }
        for task in tasks {
            let recorder = Recorder::new(Arc::clone(store), self.holder.clone());
            let span = tracing::error_span!("task", task = task.name());
            tracker.spawn(Driver { term: term.clone(), recorder }.run(task, stop.clone()).instrument(span));
        }
        tracker.spawn(Deliverer::new(&self.app, term, interval).run(stop.clone()));
        let (transport, alarm) = (Arc::clone(self.app.transport()), self.app.alarm().clone());
        tracker.spawn(link::watch(transport, alarm, stop.clone()));
        leadership.keep(&stop).await;
        tracker.close();
        tracker.wait().await;
        leadership.step_down().await;
    }
}

/// A name that says where, and that no other process has.
fn holder(host: &str) -> String {
    let id = WorkerId::new().to_string();
    // Its end is random.
    let unique: String = id.chars().skip(id.chars().count().saturating_sub(8)).collect();
    format!("{host}/{unique}")
}

#[cfg(test)]
mod tests;
