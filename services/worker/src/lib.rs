//! The worker: takes session tokens up to its slots and executes the runs of the sessions it owns.
//!
//! One incarnation of a worker ([`incarnation`]) has one id and one lease. It ends when the worker is asked to stop,
//! or when the lease is lost. After a lost lease everything it started is killed, and a new incarnation begins under
//! a new id.

mod active_sessions;
mod attempt_trace;
mod incarnation;
mod intake;
mod lease;
mod log_spans;
mod meters;
mod reaper;
mod session;
mod slot_offers;
mod slot_pool;

use std::{sync::Arc, time::Duration};

pub use reaper::{Reaped, Reaper};
use remuda_domain::Pool;
use remuda_engine::Engine;
use remuda_sandbox::Guard;
use tokio::time::timeout;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::meters::Meters;

/// How long the removal of sandboxes may delay the exit.
const UPKEEP_TIMEOUT: Duration = Duration::from_secs(10);

/// Settings of a worker.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    pub host: String,
    pub version: String,
    pub pool: Pool,
    /// Sessions executed concurrently.
    pub slots: u32,
    pub lease: Duration,
    pub heartbeat: Duration,
    /// How long running tools may continue after the stop signal.
    pub drain_deadline: Duration,
    /// Runs of one session before the slot goes to another session, if all slots are busy.
    pub max_consecutive_runs: u32,
}

/// A worker, ready to run.
#[derive(Debug)]
pub struct Worker {
    options: WorkerOptions,
    engine: Engine,
    /// Fed with every renewal of the lease, so that tools die before the lease expires even if this process hangs.
    guard: Option<Arc<Guard>>,
    meters: Meters,
}

impl Worker {
    #[must_use]
    pub fn new(options: WorkerOptions, engine: Engine, guard: Option<Arc<Guard>>) -> Self {
        Self { meters: Meters::new(&options), options, engine, guard }
    }

    /// Starts the tasks that maintain sandboxes: this worker's own, and those that lost workers left behind.
    fn start_upkeep(&self, tasks: &TaskTracker, stop: &CancellationToken) {
        for backend in self.engine.backends.iter() {
            let (backend, stop) = (Arc::clone(backend), stop.clone());
            tasks.spawn(async move { backend.maintain(stop).await });
        }
        let reaper = Reaper::new(Arc::clone(&self.engine.store), self.engine.backends.clone());
        tasks.spawn(reaper.run(self.options.lease / 3, stop.clone()));
    }

    /// Works until `stop`, then drains: hands over runs at their next step boundary, and kills the rest after the
    /// deadline.
    pub async fn run(self, stop: CancellationToken) {
        let worker = Arc::new(self);
        let (upkeep, upkeep_stop) = (TaskTracker::new(), CancellationToken::new());
        worker.start_upkeep(&upkeep, &upkeep_stop);
        while !stop.is_cancelled() {
            incarnation::run(Arc::clone(&worker), stop.clone()).await;
        }
        // Only after the last run, which needs its sandbox until then.
        upkeep_stop.cancel();
        upkeep.close();
        if timeout(UPKEEP_TIMEOUT, upkeep.wait()).await.is_err() {
            tracing::warn!(
                "some sandboxes were not removed in time; they will exit by themselves or be reaped"
            );
        }
    }
}
