//! Tool processes die with their worker.
//!
//! A worker that is killed cannot kill what it started. So each worker process has one guard: a child in a session
//! of its own that knows, over a pipe, which process groups are running. When the pipe ends, the worker is dead, and the
//! guard kills what is left. A worker that feeds its guard ([`Guard::feed`]) is also covered when it is stopped, or
//! hangs: its tools die before its lease does.
//!
//! The guard is the worker's own binary, started with a hidden subcommand that calls [`run`].

mod ledger;
mod process;
mod run;

use std::{
    collections::BTreeSet,
    fmt, io,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use nix::unistd::Pid;
use remuda_domain::error::{Error, Result};

use self::process::GuardProcess;
pub use self::run::run;

/// The worker's side of its guard process. Dropping it ends the guard, and with it every group still registered.
pub struct Guard {
    program: PathBuf,
    args: Vec<String>,
    state: Mutex<State>,
}

struct State {
    process: GuardProcess,
    groups: BTreeSet<i32>,
    /// A message was lost, so the guard's knowledge is not ours: the next registration starts a new one.
    stale: bool,
}

impl Guard {
    /// Starts a guard process: `program args…` must call [`run`]. Returns when it is on watch.
    pub async fn start(program: PathBuf, args: Vec<String>) -> Result<Arc<Self>> {
        let process = launch(program.clone(), args.clone()).await?;
        let state = Mutex::new(State { process, groups: BTreeSet::new(), stale: false });
        Ok(Arc::new(Self { program, args, state }))
    }

    /// Puts a process group under watch until the registration is dropped. A guard that has died is replaced.
    pub async fn register(self: &Arc<Self>, group: Pid) -> Result<Registration> {
        let sent = self.change(|state| {
            state.groups.insert(group.as_raw());
            if state.stale {
                return Err(io::Error::other("a message was lost"));
            }
            state.process.send(&ledger::started(group))
        });
        let registration = Registration { guard: Arc::clone(self), group };
        if let Err(error) = sent {
            tracing::warn!(%error, "the guard process does not answer; starting a new one");
            self.replace().await?;
        }
        Ok(registration)
    }

    /// Promises another message within `time`; if none comes, the guard kills every group, and those registered later
    /// too, until it is fed again. Never called, nothing is expected.
    pub fn feed(&self, time: Duration) {
        self.tell(&ledger::fed(time));
    }

    /// The process id of the guard, for logs and tests.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.lock().process.id()
    }

    async fn replace(&self) -> Result<()> {
        let process = launch(self.program.clone(), self.args.clone()).await?;
        self.change(|state| {
            // The old one must not see its pipe end: it would kill what the new one guards.
            state.process.kill();
            state.process = process;
            state.stale = false;
            let groups: String =
                state.groups.iter().map(|group| ledger::started(Pid::from_raw(*group))).collect();
            state.process.send(&groups)
        })
        .map_err(|error| unavailable().with_source(error))
    }

    fn tell(&self, message: &str) {
        self.change(|state| {
            if let Err(error) = state.process.send(message) {
                tracing::warn!(%error, "the guard process does not answer");
                state.stale = true;
            }
        });
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("id", &self.id()).finish_non_exhaustive()
    }
}

/// A process group under watch.
#[derive(Debug)]
pub struct Registration {
    guard: Arc<Guard>,
    group: Pid,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.guard.change(|state| state.groups.remove(&self.group.as_raw()));
        self.guard.tell(&ledger::ended(self.group));
    }
}

async fn launch(program: PathBuf, args: Vec<String>) -> Result<GuardProcess> {
    tokio::task::spawn_blocking(move || GuardProcess::launch(&program, &args))
        .await
        .map_err(|error| unavailable().with_source(error))?
        .map_err(|error| unavailable().with_source(error))
}

fn unavailable() -> Error {
    Error::unavailable("the guard process, without which no tool process is started, cannot be started")
}
