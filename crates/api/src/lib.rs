//! The API's messages as JSON: what HTTP clients, `--json` and webhooks see.
//!
//! Field names are those of the protos. Text that is JSON inside a protobuf message (arguments, outputs, data, parts) is real
//! JSON here, times are RFC 3339, durations milliseconds, states their lower-case names. What is empty is left out.
//!
//! Everything is made from, or made into, a message of `remuda_proto::v1`: a call means the same over gRPC and over HTTP
//! because it is the same call.

mod agent;
mod approval;
mod event;
mod explanation;
mod fleet;
mod overview;
mod page;
mod request;
mod run;
mod session;
mod spending;
mod step;
mod trace;
mod value;
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
    overview::{Counts, Overview, PoolOverview, RunGlance},
    page::{
        ApprovalPage, DeadLetterPage, MessagePage, RunPage, SessionPage, StepList, WebhookPage, WorkspacePage,
    },
    request::{
        CancelRequest, CancelSessionRequest, CloseSessionRequest, DecisionRequest, NewImage, NewMessage,
        NewRun, NewSession, NewToolCall, NewTools, NewWorkspace, SessionChange, Text,
    },
    run::{
        BudgetSet, CancelReceipts, CancelledSession, Failure, IfBusy, Place, Run, RunState, Submitted,
        ToolCall, ToolOutcome, ToolsInput, Waited,
    },
    session::{Execution, Session, SessionStatus, Workspace},
    spending::{Amount, Budget, Limit, Total, Usage},
    step::Step,
    trace::{Trace, TraceSpan},
    value::embedded,
    webhook::{
        DeadLetter, DeliveryFailure, NewWebhook, Redelivery, RedeliveryRequest, Webhook, WebhookChange,
        WebhookTest,
    },
};
