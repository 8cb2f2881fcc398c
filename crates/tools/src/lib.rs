//! The native tools and their registry.
//!
//! A [`Tool`] validates its arguments strictly, describes itself to permission rules, workspaces and screens, and works
//! in the session's sandbox. The [`Registry`] holds tools by name: the control plane uses it at submission, the
//! engine at execution. A new tool is one module in `native` and one line in [`Registry::native`].

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
