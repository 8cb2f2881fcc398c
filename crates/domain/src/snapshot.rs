//! Snapshots: the current state, for readers whose cursor has been trimmed.

use serde::{Deserialize, Serialize};

use crate::{
    event::Cursor,
    ids::RunId,
    run::{Failure, Run, RunState},
    session::{Session, SessionStatus},
};

/// Replaces trimmed history. It is created for one reader and not stored. The content of trimmed events is in the
/// session's messages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The oldest retained event; `last_cursor + 1` if there is none.
    pub first_cursor: Cursor,
    /// The newest event.
    pub last_cursor: Cursor,
    pub session: SessionSnapshot,
    /// Unfinished runs in execution order; in the stream of one run, that run.
    pub runs: Vec<RunSnapshot>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionSnapshot {
    pub status: SessionStatus,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub title: String,
    /// The agent that leads it; the workspace's default if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Number of unfinished runs. May exceed those listed.
    pub pending_runs: i64,
    /// The run that executes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_run: Option<RunId>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunSnapshot {
    pub run: RunId,
    pub seq: i64,
    pub state: RunState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
}

impl From<&Session> for SessionSnapshot {
    fn from(session: &Session) -> Self {
        Self {
            status: session.status,
            title: session.title.clone(),
            agent: session.agent.clone(),
            pending_runs: session.pending,
            current_run: session.current,
        }
    }
}

impl From<&Run> for RunSnapshot {
    fn from(run: &Run) -> Self {
        Self { run: run.id, seq: run.seq, state: run.state, failure: run.failure.clone() }
    }
}
