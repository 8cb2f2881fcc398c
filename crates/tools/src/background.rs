//! Commands that go on while their run does other things.
//!
//! A background task belongs to a run: it begins with a call of `Bash`, and whatever is left of it dies when the run
//! ends, is handed over or crashes. Nobody can look at a task of another run.

mod ring;
mod task;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use remuda_domain::error::{Code, Error, Result};
use remuda_sandbox::{Command, Sandbox};
use tokio::time::{Instant, timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::task::Task;
pub(crate) use self::{
    ring::News,
    task::{Report, Status},
};

/// Running at the same time, in one run.
pub const MAX_RUNNING: usize = 8;
/// Ended tasks whose output can still be asked for. The oldest are forgotten first.
const MAX_ENDED: usize = 16;
/// How long [`BackgroundTasks::shutdown`] waits for tasks to end as they should, and then for what is dropped.
const PATIENCE: Duration = Duration::from_secs(10);

/// The background tasks of one run. Dropping it ends them; [`shutdown`](Self::shutdown) also waits for that.
#[derive(Debug)]
pub struct BackgroundTasks {
    /// When the run's own time is over.
    deadline: Instant,
    cancel: CancellationToken,
    tracker: TaskTracker,
    tasks: Mutex<Tasks>,
}

#[derive(Debug, Default)]
struct Tasks {
    last: u32,
    known: BTreeMap<u32, Arc<Task>>,
    closed: bool,
}

impl BackgroundTasks {
    /// None yet, for a run that has time until `deadline`.
    #[must_use]
    pub fn new(deadline: Instant) -> Self {
        let (cancel, tracker) = (CancellationToken::new(), TaskTracker::new());
        Self { deadline, cancel, tracker, tasks: Mutex::default() }
    }

    /// Starts a command and says by which name to ask for it. Its time limit is the run's.
    pub(crate) fn start(&self, sandbox: Arc<dyn Sandbox>, mut command: Command) -> Result<String> {
        command.timeout = self.deadline.saturating_duration_since(Instant::now());
        let mut tasks = self.tasks();
        if tasks.closed {
            return Err(Error::new(Code::Cancelled, "the run is ending"));
        }
        let running = tasks.known.values().filter(|task| task.is_running()).count();
        if running >= MAX_RUNNING {
            let message = format!("{MAX_RUNNING} background tasks run already: end one with KillBash");
            return Err(Error::new(Code::Overloaded, message));
        }
        let ended: Vec<u32> =
            tasks.known.iter().filter(|(_, task)| !task.is_running()).map(|(number, _)| *number).collect();
        for number in ended.iter().take(ended.len().saturating_sub(MAX_ENDED - 1)) {
            tasks.known.remove(number);
        }
        let task = Task::start(&self.tracker, self.cancel.child_token(), sandbox, command);
        tasks.last += 1;
        let number = tasks.last;
        tasks.known.insert(number, Arc::new(task));
        Ok(name(number))
    }

    pub(crate) fn get(&self, id: &str) -> Result<Arc<Task>> {
        let tasks = self.tasks();
        let found =
            tasks.known.iter().find(|(number, _)| name(**number) == id).map(|(_, task)| Arc::clone(task));
        found.ok_or_else(|| {
            let known: Vec<String> = tasks.known.keys().map(|number| name(*number)).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            let hint =
                format!("this run has no such background task (it has: {known}); tasks end with their run");
            Error::new(Code::TaskNotFound, hint)
        })
    }

    /// Ends all tasks and waits until they are gone. No more can be started. Says how many were still running.
    pub async fn shutdown(&self) -> usize {
        let running = {
            let mut tasks = self.tasks();
            tasks.closed = true;
            tasks.known.values().filter(|task| task.is_running()).count()
        };
        self.cancel.cancel();
        self.tracker.close();
        if timeout(PATIENCE, self.tracker.wait()).await.is_err() {
            // Dropping an execution kills it, whatever held up its orderly end.
            self.tasks().known.values().for_each(|task| task.abort());
            if timeout(PATIENCE, self.tracker.wait()).await.is_err() {
                tracing::error!(tasks = self.tracker.len(), "background tasks do not end");
            }
        }
        running
    }

    fn tasks(&self) -> MutexGuard<'_, Tasks> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for BackgroundTasks {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

fn name(number: u32) -> String {
    format!("bash_{number}")
}
