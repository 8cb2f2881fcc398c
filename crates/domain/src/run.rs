//! Runs: their input, their states and the legal transitions.

mod end_notice;

use std::{fmt, str::FromStr, time::Duration};

use chrono::TimeDelta;
use serde::{Deserialize, Serialize};

pub use end_notice::{Completion, RunEndNotice};

use crate::{
    Timestamp,
    budget::{Budget, Total},
    error::{Code, Error},
    ids::{ControlPlaneId, MessageId, RunId, SessionId, TenantId},
    labels::Labels,
    message::Part,
    step::StopReason,
    tool::{ToolCall, ToolOutcome},
};

/// State of a run. Terminal states are final.
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
    /// Waits in the store for an approval, children, a budget or an external event, and occupies no worker.
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

    /// Whether a run may change to `next`. Every pair that is not listed is rejected.
    #[must_use]
    pub const fn allows(self, next: Self) -> bool {
        match (self, next) {
            (Self::Queued, Self::Running | Self::Failed | Self::Cancelled | Self::TimedOut) => true,
            // Back to queued: a drained or lost owner hands the run over.
            (Self::Running, Self::Queued | Self::Parked) => true,
            (Self::Running, next) => next.is_terminal(),
            (Self::Parked, Self::Queued | Self::Running) => true,
            // A parked run does nothing, so it cannot complete. It can be ended from outside.
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

    /// The number stored in the database. Non-terminal states are below 10, so one comparison selects them.
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

/// What a run does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum RunInput {
    Tools(ToolsInput),
    Message(MessageInput),
}

impl RunInput {
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Tools(_) => "tools",
            Self::Message(_) => "message",
        }
    }
}

/// A message to the session's agent, which works until it has an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MessageInput {
    /// Id of the message in the transcript, to which it is added when the run starts.
    pub id: MessageId,
    /// Texts and images.
    pub parts: Vec<Part>,
    /// The agent that leads the session from here on; the session's current one if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
}

/// An ordered list of tool calls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolsInput {
    pub calls: Vec<ToolCall>,
    /// Continue with the next call after one failed. A failed call then does not fail the run.
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
    /// Reject the new run.
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

/// How a run ended: the terminal state with its result.
#[derive(Clone, Debug, PartialEq)]
pub struct RunEnd {
    pub state: RunState,
    pub outcomes: Vec<ToolOutcome>,
    pub failure: Option<Failure>,
}

/// A request to cancel a run, and its progress. The last receipt is the end of the run itself: then its slot is free.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelRequest {
    pub at: Timestamp,
    pub reason: String,
    /// When the worker that executed the run received the request. `None` if no worker executed it.
    pub delivered_at: Option<Timestamp>,
    /// When the last process of the run was dead.
    pub stopped_at: Option<Timestamp>,
}

/// What a parked run waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParkReason {
    /// A person's decision on a tool call.
    Approval,
    /// The ends of child runs.
    Children,
    /// A higher budget.
    Budget,
    /// An external event.
    External,
}

impl ParkReason {
    pub const ALL: [Self; 4] = [Self::Approval, Self::Children, Self::Budget, Self::External];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Approval => "approval",
            Self::Children => "children",
            Self::Budget => "budget",
            Self::External => "external",
        }
    }

    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == text)
    }
}

/// Since when and why a run is parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parked {
    pub reason: ParkReason,
    pub at: Timestamp,
}

/// A run as readers see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    pub id: RunId,
    pub tenant: TenantId,
    pub session: SessionId,
    /// Position in the session's queue: runs start in this order.
    pub seq: i64,
    pub state: RunState,
    pub input: RunInput,
    pub timeout: Duration,
    /// How many workers have started it. Above one after a crash, a hand-over or a park.
    pub attempt: u32,
    /// How many of them were lost. Too many end the run: it may be what kills its workers.
    pub lost_attempts: u32,
    pub created_at: Timestamp,
    /// When it was first started.
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    pub outcomes: Vec<ToolOutcome>,
    /// Final message of the agent, in a `message` run.
    pub answer: Option<String>,
    /// Why the agent had to give it, if it did not conclude by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<StopReason>,
    pub failure: Option<Failure>,
    pub cancel: Option<CancelRequest>,
    pub parked: Option<Parked>,
    /// The parent run. A child ends before its parent does.
    pub parent: Option<RunId>,
    /// What it has spent, without its descendants.
    pub spent: Total,
    /// Budget of the run and its descendants, if set.
    pub budget: Option<Budget>,
    /// Total time it was parked.
    pub paused: Duration,
    /// How long workers have executed it, itself or through its children: up to the end of the last attempt, or, when an
    /// attempt was lost, up to its last heartbeat. Its timeout limits this time. It is measured on the workers' monotonic
    /// clocks, so that neither a wait for a worker nor a clock that jumps uses any of it.
    #[serde(default, skip_serializing_if = "Duration::is_zero")]
    pub worked: Duration,
    pub idempotency_key: Option<String>,
    /// W3C `traceparent` of the submitter, so that one trace spans all processes.
    pub traceparent: Option<String>,
    /// The control plane whose client waits for the end. It gets a [`RunEndNotice`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub awaited_by: Option<ControlPlaneId>,
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
}

impl Run {
    /// A new run. The store that accepts it sets `seq` and `created_at`.
    #[must_use]
    pub fn queued(
        id: RunId,
        (tenant, session): (TenantId, SessionId),
        input: RunInput,
        timeout: Duration,
    ) -> Self {
        Self {
            id,
            tenant,
            session,
            seq: 0,
            state: RunState::Queued,
            input,
            timeout,
            attempt: 0,
            lost_attempts: 0,
            created_at: Timestamp::UNIX_EPOCH,
            started_at: None,
            finished_at: None,
            outcomes: Vec::new(),
            answer: None,
            stop_reason: None,
            failure: None,
            cancel: None,
            parked: None,
            parent: None,
            spent: Total::default(),
            budget: None,
            paused: Duration::ZERO,
            worked: Duration::ZERO,
            idempotency_key: None,
            traceparent: None,
            awaited_by: None,
            labels: Labels::default(),
        }
    }

    /// How much of its timeout is left for the next attempt.
    #[must_use]
    pub const fn time_left(&self) -> Duration {
        self.timeout.saturating_sub(self.worked)
    }

    /// When the run times out if it is executed all the time: an estimate for people. `None` before it has started, and
    /// while it is parked.
    #[must_use]
    pub fn deadline(&self) -> Option<Timestamp> {
        if self.parked.is_some() {
            return None;
        }
        let allowed = TimeDelta::from_std(self.timeout + self.paused).unwrap_or(TimeDelta::MAX);
        Some(self.started_at?.checked_add_signed(allowed).unwrap_or(Timestamp::MAX_UTC))
    }

    /// What becomes of a run without an owner: it waits for the next one, or there is a reason to end it now.
    #[must_use]
    pub fn fate(&self, max_lost_attempts: u32) -> Fate {
        if let Some(cancel) = &self.cancel {
            let failure = Failure::new(Code::Cancelled, cancel.reason.clone());
            return Fate::End(RunState::Cancelled, failure);
        }
        if self.time_left().is_zero() {
            let message = format!("the run did not end within {:?}", self.timeout);
            return Fate::End(RunState::TimedOut, Failure::new(Code::RunTimedOut, message));
        }
        if self.lost_attempts >= max_lost_attempts {
            let message = format!("{} workers were lost while they executed the run", self.lost_attempts);
            return Fate::End(RunState::Failed, Failure::new(Code::AttemptsExhausted, message));
        }
        Fate::Wait
    }
}

/// How long a run has worked, itself or through its children: since its start, without its pauses.
#[must_use]
pub fn worked(started_at: Option<Timestamp>, until: Timestamp, paused: Duration) -> Duration {
    let since_start = started_at.map(|at| (until - at).to_std().unwrap_or_default());
    since_start.unwrap_or_default().saturating_sub(paused)
}

/// How much of a wait is a pause, during which the timeout does not run. A run that waits for children works through
/// them: what the longest of them `worked` during the wait counts as time of the run. Their own waits do not count,
/// nor does what they worked before.
#[must_use]
pub const fn pause(reason: ParkReason, waited: Duration, worked: Duration) -> Duration {
    match reason {
        ParkReason::Children => waited.saturating_sub(worked),
        ParkReason::Approval | ParkReason::Budget | ParkReason::External => waited,
    }
}

/// What becomes of a run without an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    Wait,
    End(RunState, Failure),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole relation once more, by hand, so that a change must be made twice, on purpose.
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
    fn wait_for_children_pauses_the_parent_except_while_they_work() {
        let minutes = |count: u64| Duration::from_secs(60 * count);
        for reason in [ParkReason::Approval, ParkReason::Budget, ParkReason::External] {
            assert_eq!(pause(reason, minutes(10), minutes(4)), minutes(10));
        }
        assert_eq!(pause(ParkReason::Children, minutes(10), minutes(4)), minutes(6));
        let (start, end) = (Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH + TimeDelta::minutes(9));
        assert_eq!(worked(Some(start), end, minutes(5)), minutes(4));
        assert_eq!(worked(None, end, minutes(5)), Duration::ZERO);
        // A child that started before the wait.
        assert_eq!(pause(ParkReason::Children, minutes(10), minutes(30)), Duration::ZERO);
    }

    #[test]
    fn run_state_parses_back_from_text_and_database() {
        for state in RunState::ALL {
            assert_eq!(state.as_str().parse::<RunState>().unwrap(), state);
            assert_eq!(RunState::from_db(state.to_db()), Some(state));
            assert_eq!(state.is_terminal(), state.to_db() >= 10);
        }
    }
}
