//! The guard: a process that kills tool processes when their worker dies.
//!
//! A worker that is killed cannot kill its children. Therefore each worker process has one guard: a child in
//! its own session that is told over a pipe which process groups are running. When the pipe ends, the worker
//! is dead, and the guard kills the remaining groups. A worker that feeds the watchdog
//! ([`Guard::feed_watchdog`]) is also covered when it is stopped or hangs: its tools die before its lease
//! expires.
//!
//! The guard is the worker's own binary, started with a hidden subcommand that calls [`run`].

mod pending_registrations;
mod process;
mod run;
mod watch_state;

use std::{
    collections::BTreeSet,
    fmt, io,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use nix::unistd::Pid;
use parking_lot::{Mutex, MutexGuard};
use remuda_domain::error::{Code, Error, Result};
use tokio::time::timeout;

pub use self::run::run;
use self::{pending_registrations::PendingRegistrations, process::GuardProcess};

/// How long a guard may take to reply; it has nothing else to do.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// The worker's handle of its guard process. Dropping it ends the guard and kills every group that is still
/// registered.
pub struct Guard {
    program: PathBuf,
    args: Vec<String>,
    registrations: PendingRegistrations,
    state: Mutex<State>,
}

struct State {
    process: GuardProcess,
    groups: BTreeSet<i32>,
    /// When the guard kills all groups, unless the watchdog is fed again.
    deadline: Option<Instant>,
    /// A message was lost, so the guard's state is outdated: the next registration starts a new guard.
    stale: bool,
}

impl Guard {
    /// Starts a guard process: `program args…` must call [`run`]. Returns when the guard is ready.
    pub async fn start(program: PathBuf, args: Vec<String>) -> Result<Arc<Self>> {
        let registrations = PendingRegistrations::default();
        let process = launch(program.clone(), args.clone(), registrations.clone()).await?;
        let state = State { process, groups: BTreeSet::new(), deadline: None, stale: false };
        Ok(Arc::new(Self { program, args, registrations, state: Mutex::new(state) }))
    }

    /// Registers a process group until the registration is dropped. Returns when the guard has confirmed it,
    /// so that no command starts after the worker's lease has expired. A dead guard is replaced.
    pub async fn register(self: &Arc<Self>, group: Pid) -> Result<Registration> {
        let reply = self.registrations.add(group.as_raw());
        let sent = self.with_state(|state| {
            state.groups.insert(group.as_raw());
            if state.stale {
                return Err(io::Error::other("a message was lost"));
            }
            state.process.send(&watch_state::started_message(group))
        });
        let registration = Registration { guard: Arc::clone(self), group };
        if let Err(error) = sent {
            tracing::warn!(%error, "guard process does not respond; starting a new one");
            self.replace().await?;
        }
        match timeout(REPLY_TIMEOUT, reply).await {
            Ok(Ok(true)) => Ok(registration),
            Ok(Ok(false)) => Err(lease_expired()),
            Ok(Err(_)) | Err(_) => Err(unavailable()),
        }
    }

    /// Time until the guard kills all groups unless the watchdog is fed; `None` if it was never fed.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        self.lock().deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// Fails if the watchdog has expired. For side effects that are not processes, like file writes.
    pub fn check(&self) -> Result<()> {
        match self.lock().deadline {
            Some(deadline) if deadline <= Instant::now() => Err(lease_expired()),
            _ => Ok(()),
        }
    }

    /// Feeds the watchdog: if no other call follows within `time`, the guard kills every group, including
    /// groups registered later, until it is fed again. Without any call the watchdog is off.
    pub fn feed_watchdog(&self, time: Duration) {
        self.with_state(|state| state.deadline = Instant::now().checked_add(time));
        self.send(&watch_state::feed_message(time));
    }

    /// The process id of the guard, for logs and tests.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.lock().process.id()
    }

    async fn replace(&self) -> Result<()> {
        let process = launch(self.program.clone(), self.args.clone(), self.registrations.clone()).await?;
        self.with_state(|state| {
            // Killed before its pipe ends: otherwise the old guard would kill the groups of the new one.
            state.process.kill();
            state.process = process;
            state.stale = false;
            let groups: String = state
                .groups
                .iter()
                .map(|group| watch_state::started_message(Pid::from_raw(*group)))
                .collect();
            state.process.send(&groups)
        })
        .map_err(|error| unavailable().with_source(error))
    }

    fn send(&self, message: &str) {
        self.with_state(|state| {
            if let Err(error) = state.process.send(message) {
                tracing::warn!(%error, "guard process does not respond");
                state.stale = true;
            }
        });
    }

    fn with_state<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("id", &self.id()).finish_non_exhaustive()
    }
}

/// A registered process group. Dropping it removes the registration.
#[derive(Debug)]
pub struct Registration {
    guard: Arc<Guard>,
    group: Pid,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.guard.registrations.remove(self.group.as_raw());
        self.guard.with_state(|state| state.groups.remove(&self.group.as_raw()));
        self.guard.send(&watch_state::ended_message(self.group));
    }
}

async fn launch(
    program: PathBuf,
    args: Vec<String>,
    registrations: PendingRegistrations,
) -> Result<GuardProcess> {
    let launch = move || {
        let (process, stdout) = GuardProcess::launch(&program, &args)?;
        registrations.listen(stdout)?;
        Ok::<_, io::Error>(process)
    };
    tokio::task::spawn_blocking(launch)
        .await
        .map_err(|error| unavailable().with_source(error))?
        .map_err(|error| unavailable().with_source(error))
}

fn lease_expired() -> Error {
    Error::new(Code::OwnershipLost, "the worker's lease has expired; no command may start")
}

fn unavailable() -> Error {
    Error::unavailable("cannot start the guard process; tool processes need one")
}
