//! Where things stand, for readers whose place in history is no longer kept.

use serde::{Deserialize, Serialize};

use crate::{
    event::Cursor,
    ids::RunId,
    run::{Failure, Run, RunState},
    session::{Session, SessionStatus},
};

/// Stands for history that was trimmed. It is made for one reader and stored nowhere; what was said is in the session's messages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The oldest event that is kept; one more than `last_cursor` when none is.
    pub first_cursor: Cursor,
    /// The newest event there is.
    pub last_cursor: Cursor,
    pub session: SessionSnapshot,
    /// Unfinished runs, in the order of execution; of a stream of one run, that one.
    pub runs: Vec<RunSnapshot>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionSnapshot {
    pub status: SessionStatus,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub title: String,
    /// The agent that leads it; the workspace's default one when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// How many runs are unfinished. May be more than are listed.
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
