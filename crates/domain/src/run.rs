//! Runs: their input, their states and the legal transitions.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    Timestamp,
    error::{Code, Error},
    ids::{RunId, SessionId, TenantId},
    tool::{ToolCall, ToolOutcome},
};

/// Where a run is in its life. Terminal states are final.
///
/// ```text
/// queued ──► running ◄──► parked
///    │          │            │
///    └──────────┴────────────┴──► completed | failed | cancelled | timed_out
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    Queued,
    Running,
    /// Waits as data in the store (for a person, for children, for money) and holds no worker.
    Parked,
    Completed,
    Failed,
    Cancelled,
    TimedOut,
}

impl RunState {
    pub const ALL: [Self; 7] = [
        Self::Queued,
        Self::Running,
        Self::Parked,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
        Self::TimedOut,
    ];

    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled | Self::TimedOut)
    }

    /// Whether a run may go from here to `next`. Every pair that is not listed is refused.
    #[must_use]
    pub const fn allows(self, next: Self) -> bool {
        match (self, next) {
            (Self::Queued, Self::Running | Self::Failed | Self::Cancelled | Self::TimedOut) => true,
            // Back to queued: a drained or dead owner hands the run over.
            (Self::Running, Self::Queued | Self::Parked) => true,
            (Self::Running, next) => next.is_terminal(),
            (Self::Parked, Self::Queued | Self::Running) => true,
            // A parked run does nothing, so it cannot complete; it can be ended from outside.
            (Self::Parked, Self::Failed | Self::Cancelled | Self::TimedOut) => true,
            _ => false,
        }
    }

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Parked => "parked",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::TimedOut => "timed_out",
        }
    }

    /// The number stored in the database. Live states are below 10, so one comparison tells them apart.
    #[must_use]
    pub const fn to_db(self) -> i16 {
        match self {
            Self::Queued => 0,
            Self::Running => 1,
            Self::Parked => 2,
            Self::Completed => 10,
            Self::Failed => 11,
            Self::Cancelled => 12,
            Self::TimedOut => 13,
        }
    }

    #[must_use]
    pub fn from_db(number: i16) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.to_db() == number)
    }
}

impl fmt::Display for RunState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for RunState {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|state| state.as_str() == text).ok_or_else(|| {
            Error::invalid(
                "state",
                "expected queued, running, parked, completed, failed, cancelled or timed_out",
            )
        })
    }
}

/// What a run has to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum RunInput {
    Tools(ToolsInput),
}

impl RunInput {
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Tools(_) => "tools",
        }
    }
}

/// An ordered list of tool calls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolsInput {
    pub calls: Vec<ToolCall>,
    /// Go on with the next call after one failed. A failed call then does not fail the run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub continue_on_error: bool,
    /// Append the calls and their results to the session's transcript, where agents see them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub record: bool,
}

/// What to do when the session already has unfinished runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IfBusy {
    /// Wait for them.
    #[default]
    Enqueue,
    /// Refuse the new run.
    Reject,
    /// Cancel them, then run.
    Interrupt,
}

/// Why a run ended without completing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// A stable code, see [`Code`].
    pub code: String,
    pub message: String,
}

impl Failure {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code: code.as_str().to_owned(), message: message.into() }
    }
}

/// How a run ended: the terminal state with what belongs to it.
#[derive(Clone, Debug, PartialEq)]
pub struct RunEnd {
    pub state: RunState,
    pub outcomes: Vec<ToolOutcome>,
    pub failure: Option<Failure>,
}

/// Someone asked for a run to stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelRequest {
    pub at: Timestamp,
    pub reason: String,
}

/// A run as readers see it.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    pub id: RunId,
    pub tenant: TenantId,
    pub session: SessionId,
    /// Place in the session's line: runs start in this order.
    pub seq: i64,
    pub state: RunState,
    pub input: RunInput,
    pub timeout: Duration,
    /// How many workers have started it. Above one after a crash or a hand-over.
    pub attempt: u32,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    pub outcomes: Vec<ToolOutcome>,
    pub failure: Option<Failure>,
    pub cancel: Option<CancelRequest>,
    pub idempotency_key: Option<String>,
    /// W3C `traceparent` of the submitter, so that one trace spans every process.
    pub traceparent: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole relation, written down once more by hand: a change to it must be made twice, on purpose.
    #[test]
    fn exactly_these_transitions_are_legal() {
        use RunState::*;
        let legal = [
            (Queued, Running),
            (Queued, Failed),
            (Queued, Cancelled),
            (Queued, TimedOut),
            (Running, Queued),
            (Running, Parked),
            (Running, Completed),
            (Running, Failed),
            (Running, Cancelled),
            (Running, TimedOut),
            (Parked, Queued),
            (Parked, Running),
            (Parked, Failed),
            (Parked, Cancelled),
            (Parked, TimedOut),
        ];
        for from in RunState::ALL {
            for to in RunState::ALL {
                assert_eq!(from.allows(to), legal.contains(&(from, to)), "{from} -> {to}");
            }
        }
    }

    #[test]
    fn states_survive_text_and_database() {
        for state in RunState::ALL {
            assert_eq!(state.as_str().parse::<RunState>().unwrap(), state);
            assert_eq!(RunState::from_db(state.to_db()), Some(state));
            assert_eq!(state.is_terminal(), state.to_db() >= 10);
        }
    }
}
