//! The worker: takes session tokens up to its slots and executes the runs of the sessions it owns.
//!
//! One life of a worker ([`life`]) has one id and one lease. It ends when the worker is told to stop, or when the lease is
//! lost: then everything it started is killed, and a new life begins under a new id.

mod context;
mod held;
mod intake;
mod lease;
mod life;
mod meters;
mod offers;
mod reaper;
mod seats;
mod session;
mod traced;

use std::{sync::Arc, time::Duration};

pub use reaper::{Reaped, Reaper};
use remuda_domain::Pool;
use remuda_engine::Engine;
use remuda_sandbox::Guard;
use tokio::time::timeout;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::meters::Meters;

/// How long the removal of sandboxes may hold up the exit.
const UPKEEP_PATIENCE: Duration = Duration::from_secs(10);

/// How a worker behaves.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    pub host: String,
    pub version: String,
    pub pool: Pool,
    /// Sessions executed at once.
    pub slots: u32,
    pub lease: Duration,
    pub heartbeat: Duration,
    /// How long running tools may go on after the stop signal.
    pub drain_deadline: Duration,
    /// Runs of one session before other sessions get the slot.
    pub turn: u32,
}

/// A worker, ready to run.
#[derive(Debug)]
pub struct Worker {
    options: WorkerOptions,
    engine: Engine,
    /// Fed with every renewal of the lease, so that tools die before the lease does even if this process hangs.
    guard: Option<Arc<Guard>>,
    meters: Meters,
}

impl Worker {
    #[must_use]
    pub fn new(options: WorkerOptions, engine: Engine, guard: Option<Arc<Guard>>) -> Self {
        Self { meters: Meters::new(&options), options, engine, guard }
    }

    /// Looks after sandboxes, this worker's own and what others left.
    fn start_upkeep(&self, tasks: &TaskTracker, stop: &CancellationToken) {
        for backend in self.engine.backends.iter() {
            let (backend, stop) = (Arc::clone(backend), stop.clone());
            tasks.spawn(async move { backend.keep(stop).await });
        }
        let reaper = Reaper::new(Arc::clone(&self.engine.store), self.engine.backends.clone());
        tasks.spawn(reaper.run(self.options.lease / 3, stop.clone()));
    }

    /// Works until `stop`, then drains: hands over at the next step boundary, and after the deadline kills what is left.
    pub async fn run(self, stop: CancellationToken) {
        let worker = Arc::new(self);
        let (upkeep, upkeep_stop) = (TaskTracker::new(), CancellationToken::new());
        worker.start_upkeep(&upkeep, &upkeep_stop);
        while !stop.is_cancelled() {
            life::live(Arc::clone(&worker), stop.clone()).await;
        }
        // After the last run: its sandbox is needed until then.
        upkeep_stop.cancel();
        upkeep.close();
        if timeout(UPKEEP_PATIENCE, upkeep.wait()).await.is_err() {
            tracing::warn!(
                "some sandboxes could not be removed in time; they end by themselves, or are reaped"
            );
        }
    }
}
