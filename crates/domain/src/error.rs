//! The error type, with a stable code.
//!
//! Programs match on the [`Code`]: its name never changes once released, and it determines the gRPC status and the
//! HTTP status. The message is for people. `Display` omits the source; logs use [`Error::chain`].

use std::{fmt, time::Duration};

pub type Result<T, E = Error> = std::result::Result<T, E>;

type Source = Box<dyn std::error::Error + Send + Sync>;

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident => $name:literal, $grpc:ident, $http:literal;)*) => {
        /// Stable reason of an error.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Code { $($(#[$doc])* $variant,)* }

        impl Code {
            /// All codes, for documentation and tests.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name that clients see and match on.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The gRPC status of this code.
            #[must_use]
            pub const fn grpc(self) -> Grpc {
                match self { $(Self::$variant => Grpc::$grpc,)* }
            }

            /// The HTTP status of this code.
            #[must_use]
            pub const fn http(self) -> u16 {
                match self { $(Self::$variant => $http,)* }
            }

            /// The code of that name, if this version knows it.
            #[must_use]
            pub fn parse(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|code| code.as_str() == name)
            }
        }
    };
}

/// The gRPC status codes in use, by number, so that this crate needs no gRPC library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grpc {
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    Unauthenticated = 16,
}

codes! {
    /// A field has a value that is not allowed.
    InvalidArgument => "invalid_argument", InvalidArgument, 400;
    /// A field is larger than its limit.
    TooLarge => "too_large", InvalidArgument, 413;
    /// The server has no such path.
    RouteNotFound => "not_found", NotFound, 404;
    /// The path does not take this method.
    MethodNotAllowed => "method_not_allowed", Unimplemented, 405;
    /// The media type of the body is not supported.
    UnsupportedMediaType => "unsupported_media_type", InvalidArgument, 415;
    /// The object has changed since the caller read it.
    PreconditionFailed => "precondition_failed", Aborted, 412;
    /// The named tool does not exist.
    UnknownTool => "unknown_tool", InvalidArgument, 400;
    /// The session does not exist, or belongs to another tenant.
    SessionNotFound => "session_not_found", NotFound, 404;
    /// The run does not exist, or belongs to another tenant.
    RunNotFound => "run_not_found", NotFound, 404;
    /// The workspace does not exist, or belongs to another tenant.
    WorkspaceNotFound => "workspace_not_found", NotFound, 404;
    /// The operator does not allow the directory of the workspace.
    WorkspaceNotAllowed => "workspace_not_allowed", PermissionDenied, 403;
    /// No content is stored under this hash, or it belongs to another tenant.
    ContentNotFound => "content_not_found", NotFound, 404;
    /// The tenant does not exist.
    TenantNotFound => "tenant_not_found", NotFound, 404;
    /// The worker does not exist.
    WorkerNotFound => "worker_not_found", NotFound, 404;
    /// The API key does not exist.
    KeyNotFound => "key_not_found", NotFound, 404;
    /// An object of that name exists already.
    AlreadyExists => "already_exists", AlreadyExists, 409;
    /// The idempotency key was used before with another request.
    IdempotencyConflict => "idempotency_conflict", AlreadyExists, 409;
    /// The session is closed and accepts no more runs.
    SessionClosed => "session_closed", FailedPrecondition, 409;
    /// The run is not parked, so it cannot be resumed.
    NotParked => "not_parked", FailedPrecondition, 409;
    /// The session has unfinished runs and the request said `reject`.
    SessionBusy => "session_busy", FailedPrecondition, 409;
    /// The session's queue is full.
    QueueFull => "queue_full", ResourceExhausted, 429;
    /// Too many requests at once; retry later.
    Overloaded => "overloaded", ResourceExhausted, 429;
    /// The cursor lies beyond the newest event.
    CursorOutOfRange => "cursor_out_of_range", OutOfRange, 416;
    /// The request carried no valid API key.
    Unauthenticated => "unauthenticated", Unauthenticated, 401;
    /// Too many requests with invalid API keys; retry later.
    AuthenticationLimit => "authentication_limit", Unauthenticated, 429;
    /// The server does not answer under the host name of the request.
    HostNotAllowed => "host_not_allowed", PermissionDenied, 403;
    /// The request comes from a web page that may not call the API.
    OriginNotAllowed => "origin_not_allowed", PermissionDenied, 403;
    /// The key's scopes do not cover the request.
    PermissionDenied => "permission_denied", PermissionDenied, 403;
    /// The writer no longer owns the session.
    OwnershipLost => "ownership_lost", Aborted, 409;
    /// The caller's deadline passed.
    DeadlineExceeded => "deadline_exceeded", DeadlineExceeded, 504;
    /// The run's own time limit passed.
    RunTimedOut => "run_timed_out", DeadlineExceeded, 504;
    /// A tool call's time limit passed.
    ToolTimedOut => "tool_timed_out", DeadlineExceeded, 504;
    /// A tool call ended without a result.
    ToolFailed => "tool_failed", FailedPrecondition, 422;
    /// A path leads out of the workspace.
    PathNotAllowed => "path_not_allowed", PermissionDenied, 403;
    /// A file or directory does not exist.
    FileNotFound => "file_not_found", NotFound, 404;
    /// The tenant's policy does not allow this backend.
    BackendNotAllowed => "backend_not_allowed", PermissionDenied, 403;
    /// The tenant may not use this container image.
    ImageNotAllowed => "image_not_allowed", PermissionDenied, 403;
    /// The engine does not have this container image.
    ImageNotFound => "image_not_found", FailedPrecondition, 422;
    /// Commands cannot be executed in this container image.
    ImageUnusable => "image_unusable", FailedPrecondition, 422;
    /// The session's backend is `none`: it has no tools.
    ToolsDisabled => "tools_disabled", FailedPrecondition, 409;
    /// The file exists and was not read in this session.
    ReadRequired => "read_required", FailedPrecondition, 409;
    /// The file changed since it was read in this session.
    FileChanged => "file_changed", FailedPrecondition, 409;
    /// The text to replace is not in the file.
    NoMatch => "no_match", FailedPrecondition, 409;
    /// The text to replace is in the file more than once.
    SeveralMatches => "several_matches", FailedPrecondition, 409;
    /// There is no agent of that name.
    AgentNotFound => "agent_not_found", NotFound, 404;
    /// The agent may not be used in this way.
    AgentNotAllowed => "agent_not_allowed", FailedPrecondition, 409;
    /// The workspace has no agent that could lead a session.
    MissingDefaultAgent => "missing_default_agent", FailedPrecondition, 409;
    /// There is no model of that name.
    ModelNotFound => "model_not_found", NotFound, 404;
    /// No model is configured that the agent could use.
    MissingModel => "missing_model", FailedPrecondition, 409;
    /// The session's model cannot be changed once it has messages.
    SessionModelLocked => "session_model_locked", FailedPrecondition, 409;
    /// The model's provider rejected the key.
    ModelKeyRefused => "model_key_refused", FailedPrecondition, 424;
    /// The model's provider rejected the request.
    ModelRequestRefused => "model_request_refused", FailedPrecondition, 424;
    /// The request to the model exceeds its context window.
    ContextTooLong => "context_too_long", FailedPrecondition, 413;
    /// The model's provider limits the request rate.
    ModelOverloaded => "model_overloaded", Unavailable, 503;
    /// The model's provider cannot be reached or fails.
    ModelUnavailable => "model_unavailable", Unavailable, 503;
    /// The model's provider sent nothing for too long.
    ModelTimedOut => "model_timed_out", Unavailable, 504;
    /// The model's response is invalid.
    ModelAnswerInvalid => "model_answer_invalid", FailedPrecondition, 424;
    /// The same call returned the same result too often.
    RepeatedCall => "repeated_call", FailedPrecondition, 409;
    /// An agent delegated deeper or more often than allowed.
    DelegationLimit => "delegation_limit", FailedPrecondition, 409;
    /// An agent switched more often than allowed.
    SwitchLimit => "switch_limit", FailedPrecondition, 409;
    /// A rule does not allow the call.
    CallDenied => "call_denied", PermissionDenied, 403;
    /// A person denied the call.
    CallRejected => "call_rejected", PermissionDenied, 403;
    /// The call needs a person's approval, and the session's policy is not to wait for one.
    ApprovalUnattended => "approval_unattended", FailedPrecondition, 409;
    /// The approval does not exist, or belongs to another tenant.
    ApprovalNotFound => "approval_not_found", NotFound, 404;
    /// The approval was decided before, or its run has ended.
    ApprovalDecided => "approval_decided", FailedPrecondition, 409;
    /// The approval expired before a decision. This is not a denial.
    ApprovalExpired => "approval_expired", FailedPrecondition, 409;
    /// The call is not the one that the caller has seen.
    ApprovalChanged => "approval_changed", Aborted, 409;
    /// The budget does not cover what the next model call may cost.
    BudgetExceeded => "budget_exceeded", ResourceExhausted, 402;
    /// A budget in money needs a model with a price.
    ModelUnpriced => "model_unpriced", FailedPrecondition, 409;
    /// A definition in the workspace is invalid.
    DefinitionInvalid => "definition_invalid", FailedPrecondition, 422;
    /// The command would wait for input on a terminal.
    NeedsInput => "needs_input", FailedPrecondition, 422;
    /// The background task does not exist, or ended with its run.
    TaskNotFound => "task_not_found", NotFound, 404;
    /// The webhook does not exist, or belongs to another tenant.
    WebhookNotFound => "webhook_not_found", NotFound, 404;
    /// The session has the maximum number of webhooks.
    WebhookLimit => "webhook_limit", FailedPrecondition, 409;
    /// The webhook is disabled, so nothing is delivered to it.
    WebhookDisabled => "webhook_disabled", FailedPrecondition, 409;
    /// The webhook has no such dead letter.
    DeadLetterNotFound => "dead_letter_not_found", NotFound, 404;
    /// Tools and webhooks may not reach this address.
    AddressNotAllowed => "address_not_allowed", PermissionDenied, 403;
    /// The operator has not configured this feature.
    NotConfigured => "not_configured", FailedPrecondition, 501;
    /// A call with side effects was cut short; whether they happened is unknown.
    Interrupted => "interrupted", Aborted, 409;
    /// The run was cancelled.
    Cancelled => "cancelled", Aborted, 409;
    /// The run used up its attempts.
    AttemptsExhausted => "attempts_exhausted", Aborted, 409;
    /// This version does not support the request.
    Unimplemented => "unimplemented", Unimplemented, 501;
    /// The database schema is not the one this binary needs.
    SchemaMismatch => "schema_mismatch", FailedPrecondition, 500;
    /// The database's disk is full; retry later.
    StorageFull => "storage_full", Unavailable, 503;
    /// The database is damaged.
    StorageCorrupt => "storage_corrupt", Internal, 500;
    /// A component that the request needs does not respond at the moment.
    Unavailable => "unavailable", Unavailable, 503;
    /// A bug in Remuda.
    Internal => "internal", Internal, 500;
}

impl Code {
    /// Whether a component is missing for the moment: the same request may succeed later, and nothing is wrong with it.
    #[must_use]
    pub const fn is_outage(self) -> bool {
        matches!(self, Self::Unavailable | Self::StorageFull)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An error: a stable code, a message for people, and where applicable the field and a retry hint.
pub struct Error(Box<Inner>);

struct Inner {
    code: Code,
    message: String,
    field: Option<String>,
    retry_after: Option<Duration>,
    source: Option<Source>,
}

impl Error {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self(Box::new(Inner { code, message: message.into(), field: None, retry_after: None, source: None }))
    }

    /// A field has a value that is not allowed; the message says what was expected.
    pub fn invalid(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message).at(field)
    }

    /// A bug: the message stays general, the source is for the log.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(Code::Internal, message)
    }

    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(Code::Unavailable, message)
    }

    /// Names the request field that is wrong.
    #[must_use]
    pub fn at(mut self, field: impl Into<String>) -> Self {
        self.0.field = Some(field.into());
        self
    }

    /// Sets when a retry makes sense.
    #[must_use]
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.0.retry_after = Some(delay);
        self
    }

    #[must_use]
    pub fn with_source(mut self, source: impl Into<Source>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    #[must_use]
    pub fn code(&self) -> Code {
        self.0.code
    }

    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    #[must_use]
    pub fn field(&self) -> Option<&str> {
        self.0.field.as_deref()
    }

    #[must_use]
    pub fn retry_delay(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// The same error for another receiver, without the source. Used when one failed batch fails several requests.
    #[must_use]
    pub fn duplicate(&self) -> Self {
        let Inner { code, message, field, retry_after, .. } = &*self.0;
        Self(Box::new(Inner {
            code: *code,
            message: message.clone(),
            field: field.clone(),
            retry_after: *retry_after,
            source: None,
        }))
    }

    /// The message with the whole chain of causes, for logs.
    #[must_use]
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        text
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.field {
            Some(field) => write!(f, "{field}: {}", self.0.message),
            None => f.write_str(&self.0.message),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] {}", self.0.code, self.chain())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn std::error::Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_unique_and_parse_back() {
        let names: HashSet<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(names.len(), Code::ALL.len());
        for code in Code::ALL {
            assert_eq!(Code::parse(code.as_str()), Some(*code));
            assert!((400..600).contains(&code.http()));
        }
    }

    #[test]
    fn every_code_is_documented() {
        let page = include_str!("../../../docs/errors.md");
        for code in Code::ALL {
            let row = format!("| `{code}` |");
            let line = page
                .lines()
                .find(|line| line.starts_with(&row))
                .unwrap_or_else(|| panic!("{code} is missing"));
            assert!(line.ends_with(&format!("| {} |", code.http())), "{line}");
        }
        assert_eq!(page.lines().filter(|line| line.starts_with("| `")).count(), Code::ALL.len());
    }

    #[test]
    fn display_names_the_field_and_hides_the_source() {
        let error = Error::invalid("timeout", "expected 1 s to 24 h").with_source("secret detail");
        assert_eq!(error.to_string(), "timeout: expected 1 s to 24 h");
        assert_eq!(error.chain(), "timeout: expected 1 s to 24 h: secret detail");
    }
}
