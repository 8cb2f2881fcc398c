//! Background tasks of the control plane, as operators see them.

use std::time::Duration;

use crate::Timestamp;

/// Result of one round of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskRound {
    /// A stable name, e.g. `wake_sessions`.
    pub name: String,
    /// The process that ran it.
    pub holder: String,
    pub started_at: Timestamp,
    pub duration: Duration,
    /// What it did, or why it failed.
    pub result: Result<TaskCounts, String>,
}

/// Named counts of a round, e.g. `woken` → 3. Zero counts may be omitted.
pub type TaskCounts = std::collections::BTreeMap<String, u64>;

/// A task with its last round and its totals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskStatus {
    pub last: TaskRound,
    pub rounds: u64,
    pub failures: u64,
    /// The last round that did something or failed. Most rounds do nothing.
    pub last_notable: Option<TaskRound>,
}
