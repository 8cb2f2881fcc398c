//! The trace of a run: its spans, their names and their parents.
//!
//! ```text
//! span of the client
//! └─ remuda.v1.RunService/SubmitRun        control plane, live
//!    ├─ commit run
//!    └─ run message                        from submission to end; emitted by the process that commits the end
//!       ├─ send grant                      control plane, to a worker with a free slot; if there is none:
//!       ├─ publish token                   control plane
//!       │  └─ receive token                worker: from the delivery to the grant
//!       ├─ wait in queue                   emitted by the worker that takes the run
//!       ├─ attempt                         the work of one worker, with `claim` and `commit`s
//!       │  ├─ chat <model>                 steps
//!       │  └─ execute_tool <tool>
//!       │     └─ run message               a child, when the call is a delegation
//!       ├─ wait for approval
//!       ├─ attempt                         links the one before
//!       └─ deliver events                  stream service
//! ```
//!
//! Span ids of runs, attempts, waits and steps are derived from stored ids ([`remuda_domain::trace`]), so any process that
//! knows that a span has ended can emit it. [`emit_unreported`] emits the spans of lost workers, and [`history`]
//! reconstructs the trace from the store for readers without a collector.

mod attributes;
mod history;
mod run;
mod step;
mod unreported;

pub use history::{HistorySpan, history};
pub use run::{AttemptEnd, RunTrace, delivery, live};
pub use unreported::emit_unreported;
