//! The worker: takes session tokens up to its slots and executes the runs of the sessions it owns.
//!
//! One life of a worker ([`life`]) has one id and one lease. It ends when the worker is told to stop, or when the lease is
//! lost: then everything it started is killed, and a new life begins under a new id.

mod held;
mod intake;
mod lease;
mod life;
mod session;

use std::{sync::Arc, time::Duration};

use remuda_domain::Pool;
use remuda_engine::Engine;
use remuda_sandbox::Guard;
use tokio_util::sync::CancellationToken;

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
}

impl Worker {
    #[must_use]
    pub fn new(options: WorkerOptions, engine: Engine, guard: Option<Arc<Guard>>) -> Self {
        Self { options, engine, guard }
    }

    /// Works until `stop`, then drains: hands over at the next step boundary, and after the deadline kills what is left.
    pub async fn run(self, stop: CancellationToken) {
        let worker = Arc::new(self);
        while !stop.is_cancelled() {
            life::live(Arc::clone(&worker), stop.clone()).await;
        }
    }
}
