//! The domain model of Remuda, without I/O.
//!
//! This crate holds the shared vocabulary (ids, runs, steps, events, errors) and the rules behind the system's
//! guarantees: which transitions a run may take ([`run::RunState`]) and who may change a session ([`session::Head`]).
//! The stores apply these rules inside their transactions, so each rule exists once and can be tested, and
//! model-checked, without a database.
//!
//! It does no I/O, spawns no tasks and reads no clock: callers pass the time.

pub mod agent;
pub mod approval;
pub mod background_task;
pub mod budget;
pub mod bus;
pub mod content;
pub mod display;
pub mod error;
pub mod event;
pub mod execution;
pub mod identity;
pub mod ids;
pub mod labels;
pub mod limits;
pub mod logs;
pub mod message;
pub mod model;
pub mod money;
pub mod page;
pub mod permission;
pub mod pool;
pub mod run;
pub mod session;
pub mod snapshot;
pub mod step;
mod suggestion;
pub mod tool;
pub mod trace;
pub mod webhook;
pub mod worker;

pub use error::{Code, Error, Result};
pub use event::{Appended, Cursor, Event, EventBody};
pub use ids::{
    ApiKeyId, ApprovalId, BusKeyId, CommitId, ControlPlaneId, DeliveryId, EventId, MessageId, RunId,
    SandboxId, SessionId, StepId, TenantId, ToolCallId, WebhookId, WorkerId, WorkspaceId,
};
pub use labels::Labels;
pub use pool::Pool;
pub use run::{Run, RunInput, RunState};
pub use session::{Epoch, Fence, Head};
pub use suggestion::nearest;

/// The time type used everywhere: UTC, microsecond precision in the stores.
pub type Timestamp = chrono::DateTime<chrono::Utc>;
