//! The trace of a run: which spans there are, what they are called, and where they hang.
//!
//! ```text
//! what the client does
//! └─ remuda.v1.RunService/SubmitRun        control plane, live
//!    ├─ commit run
//!    └─ run message                        from its submission to its end: told by whoever ends it
//!       ├─ send grant                      control plane, to a worker that has offered room; if none has:
//!       ├─ publish token                   control plane
//!       │  └─ receive token                worker: from the delivery to the grant
//!       ├─ wait in queue                   told by the worker that takes the run up
//!       ├─ attempt                         what one worker does of it, with `claim` and `commit`s
//!       │  ├─ chat <model>                 steps
//!       │  └─ execute_tool <tool>
//!       │     └─ run message               a child, when the call is a delegation
//!       ├─ wait for approval
//!       ├─ attempt                         links the one before
//!       └─ deliver events                  stream service
//! ```
//!
//! Ids of runs, attempts, waits and steps follow from the store ([`remuda_domain::trace`]), so spans can be told by whoever knows
//! that they are over: [`settled`] tells what lost workers did not, and [`history`] draws what the store
//! remembers of the picture for a reader that has no collector.

mod attributes;
mod history;
mod run;
mod settled;
mod step;

pub use history::{Chapter, history};
pub use run::{AttemptEnd, RunTrace, delivery, live};
pub use settled::settled;
