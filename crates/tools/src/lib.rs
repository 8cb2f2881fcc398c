//! The native tools.
//!
//! A [`Tool`] checks its arguments strictly, says what repeating it would do, and does its work in the session's
//! sandbox. The [`Registry`] knows tools by name: the control plane asks it at submission, the engine at execution.
//! Adding a tool is one module in `native` and one line in [`Registry::native`].

mod arguments;
pub mod artifacts;
mod background;
mod context;
pub mod native;
mod read_history;
mod registry;
mod state;
mod tool;
pub mod web;

pub use background::{BackgroundTasks, MAX_RUNNING};
pub use context::ToolContext;
pub use registry::{Registry, ToolOptions};
pub use tool::{CallError, CallResult, Tool};
