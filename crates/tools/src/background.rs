//! Background tasks: commands that keep running while their run continues.
//!
//! A task belongs to one run. A `Bash` call starts it, and it is killed when the run ends, is handed over or
//! crashes. Tasks of other runs are not accessible.

mod output_ring;
mod task;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use remuda_domain::error::{Code, Error, Result};
use remuda_sandbox::{Command, Sandbox};
use tokio::time::{Instant, timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::task::Task;
pub(crate) use self::{
    output_ring::NewOutput,
    task::{TaskReport, TaskStatus},
};

/// Running tasks per run.
pub const MAX_RUNNING: usize = 8;
/// Ended tasks whose output is kept. The oldest are dropped first.
const MAX_ENDED: usize = 16;
/// How long [`BackgroundTasks::shutdown`] waits for cancelled tasks, and then again for aborted ones.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// The background tasks of one run. Dropping it cancels them; [`shutdown`](Self::shutdown) also waits for
/// their end.
#[derive(Debug)]
pub struct BackgroundTasks {
    /// The run's deadline.
    deadline: Instant,
    cancel: CancellationToken,
    tracker: TaskTracker,
    tasks: Mutex<Tasks>,
}

#[derive(Debug, Default)]
struct Tasks {
    last: u32,
    by_number: BTreeMap<u32, Arc<Task>>,
    closed: bool,
}

impl BackgroundTasks {
    /// Creates an empty set for a run with this deadline.
    #[must_use]
    pub fn new(deadline: Instant) -> Self {
        let (cancel, tracker) = (CancellationToken::new(), TaskTracker::new());
        Self { deadline, cancel, tracker, tasks: Mutex::default() }
    }

    /// Starts a command and returns its task id. Its time limit is the run's.
    pub(crate) fn start(&self, sandbox: Arc<dyn Sandbox>, mut command: Command) -> Result<String> {
        command.timeout = self.deadline.saturating_duration_since(Instant::now());
        let mut tasks = self.tasks();
        if tasks.closed {
            return Err(Error::new(Code::Cancelled, "the run is ending"));
        }
        let running = tasks.by_number.values().filter(|task| task.is_running()).count();
        if running >= MAX_RUNNING {
            let message = format!("{MAX_RUNNING} background tasks run already: end one with KillBash");
            return Err(Error::new(Code::Overloaded, message));
        }
        let ended: Vec<u32> = tasks
            .by_number
            .iter()
            .filter(|(_, task)| !task.is_running())
            .map(|(number, _)| *number)
            .collect();
        for number in ended.iter().take(ended.len().saturating_sub(MAX_ENDED - 1)) {
            tasks.by_number.remove(number);
        }
        let task = Task::start(&self.tracker, self.cancel.child_token(), sandbox, command);
        tasks.last += 1;
        let number = tasks.last;
        tasks.by_number.insert(number, Arc::new(task));
        Ok(task_id(number))
    }

    pub(crate) fn get(&self, id: &str) -> Result<Arc<Task>> {
        let tasks = self.tasks();
        let found = tasks
            .by_number
            .iter()
            .find(|(number, _)| task_id(**number) == id)
            .map(|(_, task)| Arc::clone(task));
        found.ok_or_else(|| {
            let known: Vec<String> = tasks.by_number.keys().map(|number| task_id(*number)).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            let hint =
                format!("this run has no such background task (it has: {known}); tasks end with their run");
            Error::new(Code::TaskNotFound, hint)
        })
    }

    /// Ends all tasks, waits for their end and prevents new ones. Returns how many were still running.
    pub async fn shutdown(&self) -> usize {
        let running = {
            let mut tasks = self.tasks();
            tasks.closed = true;
            tasks.by_number.values().filter(|task| task.is_running()).count()
        };
        self.cancel.cancel();
        self.tracker.close();
        if timeout(SHUTDOWN_TIMEOUT, self.tracker.wait()).await.is_err() {
            // Aborting drops the execution, which kills it even if an orderly end is blocked.
            self.tasks().by_number.values().for_each(|task| task.abort());
            if timeout(SHUTDOWN_TIMEOUT, self.tracker.wait()).await.is_err() {
                tracing::error!(tasks = self.tracker.len(), "background tasks do not end");
            }
        }
        running
    }

    fn tasks(&self) -> MutexGuard<'_, Tasks> {
        self.tasks.lock()
    }
}

impl Drop for BackgroundTasks {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

fn task_id(number: u32) -> String {
    format!("bash_{number}")
}
