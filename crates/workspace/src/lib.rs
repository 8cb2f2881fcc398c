//! Reads what a workspace declares.

mod definitions;
mod problem;
mod settings;

pub use definitions::{Definitions, Skill};
pub use problem::{Problem, Severity};
pub use settings::{ModelAlias, PromptSettings, Segment, Settings, WorkspaceKind};
