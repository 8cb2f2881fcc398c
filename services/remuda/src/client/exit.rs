//! Exit codes of the client commands. Scripts depend on them, so their meaning never changes.

use std::process::ExitCode;

use remuda_domain::{Code, Error, RunState, error::Result};
use remuda_proto::{convert, v1};

/// Exit code of a client command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// Success; the run completed.
    Ok = 0,
    /// The run failed.
    RunFailed = 1,
    /// Wrong usage, or input that the server rejected.
    BadInput = 2,
    /// The server cannot be reached or is overloaded; a retry may help.
    Unavailable = 3,
    /// No such session, run, worker and so on, or it belongs to another tenant.
    NotFound = 4,
    /// No valid API key, or a key without the required scope.
    NotAllowed = 5,
    /// The run was cancelled.
    RunCancelled = 6,
    /// The run exceeded its time limit.
    RunTimedOut = 7,
    /// Conflict with the current state: session busy or closed, name taken, idempotency key used for another request.
    Conflict = 8,
    /// The run completed, but its agent was stopped: it had made all model calls that its `max_steps` allows.
    AgentStopped = 9,
    /// Any other error, such as an internal error of the server.
    Other = 10,
    /// Ctrl-C while watching. The run continues.
    Interrupted = 130,
}

/// The table for `--help`.
pub(crate) const HELP: &str = "\
Exit codes:
  0  success; the run completed     5  not allowed: no valid API key, or it lacks the scope
  1  the run failed                 6  the run was cancelled
  2  wrong usage or bad input       7  the run timed out
  3  server not reachable           8  conflict: busy, closed, already exists, …
  4  not found                      9  completed, but the agent was stopped by its max_steps
  10 anything else
  130 interrupted with Ctrl-C while watching; the run continues";

impl Exit {
    /// The exit code for the state of a run.
    pub(crate) fn of_state(state: RunState) -> Self {
        match state {
            RunState::Completed => Self::Ok,
            RunState::Failed => Self::RunFailed,
            RunState::Cancelled => Self::RunCancelled,
            RunState::TimedOut => Self::RunTimedOut,
            RunState::Queued | RunState::Running | RunState::Parked => Self::Other,
        }
    }

    pub(crate) fn of_run(run: &v1::Run) -> Result<Self> {
        let exit = Self::of_state(convert::run_state("state", run.state)?);
        Ok(if exit == Self::Ok && !run.stop_reason.is_empty() { Self::AgentStopped } else { exit })
    }
}

impl From<&Error> for Exit {
    fn from(error: &Error) -> Self {
        match error.code() {
            Code::InvalidArgument | Code::TooLarge | Code::UnknownTool | Code::CursorOutOfRange => {
                Self::BadInput
            }
            Code::Unavailable | Code::StorageFull | Code::Overloaded | Code::DeadlineExceeded => {
                Self::Unavailable
            }
            Code::SessionNotFound
            | Code::RunNotFound
            | Code::WorkspaceNotFound
            | Code::TenantNotFound
            | Code::WorkerNotFound
            | Code::KeyNotFound
            | Code::FileNotFound
            | Code::ImageNotFound
            | Code::ContentNotFound
            | Code::AgentNotFound
            | Code::ModelNotFound
            | Code::TaskNotFound
            | Code::ApprovalNotFound
            | Code::WebhookNotFound
            | Code::DeadLetterNotFound => Self::NotFound,
            Code::Unauthenticated
            | Code::PermissionDenied
            | Code::AuthenticationLimit
            | Code::HostNotAllowed
            | Code::OriginNotAllowed
            | Code::PathNotAllowed
            | Code::BackendNotAllowed
            | Code::ImageNotAllowed
            | Code::AddressNotAllowed
            | Code::CallDenied
            | Code::CallRejected => Self::NotAllowed,
            Code::AlreadyExists
            | Code::IdempotencyConflict
            | Code::SessionClosed
            | Code::NotParked
            | Code::SessionBusy
            | Code::QueueFull
            | Code::OwnershipLost
            | Code::ToolsDisabled
            | Code::ReadRequired
            | Code::FileChanged
            | Code::AgentNotAllowed
            | Code::MissingDefaultAgent
            | Code::MissingModel
            | Code::SessionModelLocked
            | Code::ApprovalDecided
            | Code::ApprovalExpired
            | Code::ApprovalChanged
            | Code::WebhookLimit
            | Code::WebhookDisabled
            | Code::ModelUnpriced => Self::Conflict,
            Code::Cancelled => Self::RunCancelled,
            Code::RunTimedOut | Code::ToolTimedOut => Self::RunTimedOut,
            Code::ToolFailed
            | Code::Interrupted
            | Code::AttemptsExhausted
            | Code::ImageUnusable
            | Code::NoMatch
            | Code::SeveralMatches
            | Code::NeedsInput
            | Code::NotConfigured
            | Code::ModelKeyRefused
            | Code::ModelRequestRefused
            | Code::ContextTooLong
            | Code::ModelOverloaded
            | Code::ModelUnavailable
            | Code::ModelTimedOut
            | Code::ModelAnswerInvalid
            | Code::RepeatedCall
            | Code::DefinitionInvalid
            | Code::DelegationLimit
            | Code::SwitchLimit
            | Code::ApprovalUnattended
            | Code::BudgetExceeded => Self::RunFailed,
            _ => Self::Other,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(code: Code) -> u8 {
        Exit::from(&Error::new(code, "x")) as u8
    }

    #[test]
    fn exit_codes_are_as_documented() {
        assert_eq!(of(Code::InvalidArgument), 2);
        assert_eq!(of(Code::Unavailable), 3);
        assert_eq!(of(Code::RunNotFound), 4);
        assert_eq!(of(Code::Unauthenticated), 5);
        assert_eq!(of(Code::PermissionDenied), 5);
        assert_eq!(of(Code::ApprovalNotFound), 4);
        assert_eq!(of(Code::ApprovalDecided), 8);
        assert_eq!(of(Code::ApprovalExpired), 8);
        assert_eq!(of(Code::SessionBusy), 8);
        assert_eq!(of(Code::IdempotencyConflict), 8);
        assert_eq!(of(Code::Internal), 10);
        let states = [RunState::Completed, RunState::Failed, RunState::Cancelled, RunState::TimedOut];
        assert_eq!(states.map(|state| Exit::of_state(state) as u8), [0, 1, 6, 7]);
        let stopped = |state: v1::RunState| v1::Run {
            state: state.into(),
            stop_reason: "max_steps".to_owned(),
            ..Default::default()
        };
        assert_eq!(Exit::of_run(&stopped(v1::RunState::Completed)).unwrap() as u8, 9);
        assert_eq!(Exit::of_run(&stopped(v1::RunState::Cancelled)).unwrap() as u8, 6);
    }

    #[test]
    fn every_error_has_a_nonzero_code_and_not_found_errors_have_4() {
        for code in Code::ALL {
            assert_ne!(of(*code), 0, "{code}");
            if code.as_str().ends_with("_not_found") {
                assert_eq!(of(*code), 4, "{code}");
            }
        }
    }
}
