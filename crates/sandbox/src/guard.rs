//! Tool processes die with their worker.
//!
//! A worker that is killed cannot kill what it started. So each worker process has one guard: a child in a session
//! of its own that knows, over a pipe, which process groups are running. When the pipe ends, the worker is dead, and the
//! guard kills what is left. A worker that feeds its guard ([`Guard::feed`]) is also covered when it is stopped, or
//! hangs: its tools die before its lease does.
//!
//! The guard is the worker's own binary, started with a hidden subcommand that calls [`run`].

mod answers;
mod ledger;
mod process;
mod run;

use std::{
    collections::BTreeSet,
    fmt, io,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use nix::unistd::Pid;
use remuda_domain::error::{Code, Error, Result};
use tokio::time::timeout;

pub use self::run::run;
use self::{answers::Answers, process::GuardProcess};

/// How long a guard may take to answer; it has nothing else to do.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The worker's side of its guard process. Dropping it ends the guard, and with it every group still registered.
pub struct Guard {
    program: PathBuf,
    args: Vec<String>,
    answers: Answers,
    state: Mutex<State>,
}

struct State {
    process: GuardProcess,
    groups: BTreeSet<i32>,
    /// Until when the guard lets tools live, if it is not fed again.
    deadline: Option<Instant>,
    /// A message was lost, so the guard's knowledge is not ours: the next registration starts a new one.
    stale: bool,
}

impl Guard {
    /// Starts a guard process: `program args…` must call [`run`]. Returns when it is on watch.
    pub async fn start(program: PathBuf, args: Vec<String>) -> Result<Arc<Self>> {
        let answers = Answers::default();
        let process = launch(program.clone(), args.clone(), answers.clone()).await?;
        let state = State { process, groups: BTreeSet::new(), deadline: None, stale: false };
        Ok(Arc::new(Self { program, args, answers, state: Mutex::new(state) }))
    }

    /// Puts a process group under watch until the registration is dropped, and returns when the guard has said so: what is
    /// started after this worker's time is over never begins. A guard that has died is replaced.
    pub async fn register(self: &Arc<Self>, group: Pid) -> Result<Registration> {
        let answer = self.answers.expect(group.as_raw());
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
        match timeout(ANSWER_TIMEOUT, answer).await {
            Ok(Ok(true)) => Ok(registration),
            Ok(Ok(false)) => Err(out_of_time()),
            Ok(Err(_)) | Err(_) => Err(unavailable()),
        }
    }

    /// How long the guard lets tools live if it is not fed again; `None` is for ever.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        self.lock().deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// Fails when the guard has killed, or is about to kill, everything: for effects that are no process.
    pub fn check(&self) -> Result<()> {
        match self.lock().deadline {
            Some(deadline) if deadline <= Instant::now() => Err(out_of_time()),
            _ => Ok(()),
        }
    }

    /// Promises another message within `time`; if none comes, the guard kills every group, and those registered later
    /// too, until it is fed again. Never called, nothing is expected.
    pub fn feed(&self, time: Duration) {
        self.change(|state| state.deadline = Instant::now().checked_add(time));
        self.tell(&ledger::fed(time));
    }

    /// The process id of the guard, for logs and tests.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.lock().process.id()
    }

    async fn replace(&self) -> Result<()> {
        let process = launch(self.program.clone(), self.args.clone(), self.answers.clone()).await?;
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
        self.guard.answers.forget(self.group.as_raw());
        self.guard.change(|state| state.groups.remove(&self.group.as_raw()));
        self.guard.tell(&ledger::ended(self.group));
    }
}

async fn launch(program: PathBuf, args: Vec<String>, answers: Answers) -> Result<GuardProcess> {
    let launch = move || {
        let (process, stdout) = GuardProcess::launch(&program, &args)?;
        answers.listen(stdout)?;
        Ok::<_, io::Error>(process)
    };
    tokio::task::spawn_blocking(launch)
        .await
        .map_err(|error| unavailable().with_source(error))?
        .map_err(|error| unavailable().with_source(error))
}

fn out_of_time() -> Error {
    Error::new(Code::OwnershipLost, "the worker's time is over: nothing may be started any more")
}

fn unavailable() -> Error {
    Error::unavailable("the guard process, without which no tool process is started, cannot be started")
}
