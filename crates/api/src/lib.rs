//! The API's messages as JSON, for HTTP, `--json` output and webhooks.
//!
//! Field names are those of the protos. Texts with JSON inside a protobuf message (arguments, outputs, data, parts) are
//! real JSON here. Times are RFC 3339, durations are milliseconds, and states have their lower-case names. Empty fields
//! are omitted.
//!
//! Every type converts from or to a message of `remuda_proto::v1`, so that a call means the same over gRPC and HTTP.

mod agent;
mod approval;
mod event;
mod explanation;
mod fleet;
mod json_value;
mod overview;
mod page;
mod request_bodies;
mod run;
mod run_trace;
mod session;
mod spending;
mod step;
mod webhook;

pub use self::{
    agent::{Image, Message, MessageInput, ModelCall},
    approval::{Approval, Decision, PermissionRule, Permissions},
    event::Event,
    explanation::{Estimate, Explanation, QueuePlace, Receipt, StepGlance, Wait},
    fleet::{
        LogFilter, LogFilterChange, LogFilterList, Pool, PoolList, Sandbox, SandboxList, ServerInfo, Task,
        TaskList, TaskRound, Worker, WorkerList,
    },
    json_value::embedded,
    overview::{Counts, Overview, PoolOverview, RunGlance},
    page::{
        ApprovalPage, DeadLetterPage, MessagePage, RunPage, SessionPage, StepList, WebhookPage, WorkspacePage,
    },
    request_bodies::{
        CancelRequest, CancelSessionRequest, CloseSessionRequest, DecisionRequest, NewImage, NewMessage,
        NewRun, NewSession, NewToolCall, NewTools, NewWorkspace, SessionChange, Text,
    },
    run::{
        BudgetSet, CancelReceipts, CancelledSession, Failure, IfBusy, Place, Run, RunState, Submitted,
        ToolCall, ToolOutcome, ToolsInput, Waited,
    },
    run_trace::{Trace, TraceSpan},
    session::{Execution, Session, SessionStatus, Workspace},
    spending::{Amount, Budget, Limit, Total, Usage},
    step::Step,
    webhook::{
        DeadLetter, DeliveryFailure, NewWebhook, Redelivery, RedeliveryRequest, Webhook, WebhookChange,
        WebhookTest,
    },
};
