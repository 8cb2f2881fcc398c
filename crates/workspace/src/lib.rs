//! Loads the definitions of a workspace: agents, models, skills, actions, tool servers, prompts.
//!
//! A [`Loader`] turns a directory into [`Definitions`]. It merges three layers: the built-in agents, the operator's
//! definitions for all workspaces, and the workspace's own. A workspace may be written for Open Agent Harness
//! (`.openharness`), OpenCode (`.opencode`, `opencode.json`) or CodingCode (`.codingcode`). Definitions are versioned by
//! their content: a run keeps the version it started with, and [`Loader::current`] returns the newest version without a
//! restart.
//!
//! Loading never fails. An invalid definition is left out and reported as a [`Problem`] with file, line, what was found
//! and what was expected; all other definitions work. A probable mistake, such as an unknown key, is a warning.
//!
//! Workspaces are written by tenants. So links out of a workspace are not followed, all sizes are bounded, and a
//! workspace reads only the environment variables (`${env.NAME}` in strings of YAML) that [`EnvironmentAccess`] allows.
//! Problems contain no values of environment variables. Versions contain no keys and headers of models.
//!
//! This crate executes nothing, opens no connections and watches no files. It blocks on the file system.

mod agent_targets;
mod agents;
mod cache;
mod definition_dir;
mod definition_files;
mod definitions;
mod environment;
#[doc(hidden)]
pub mod fuzzing;
mod init;
mod loader;
mod memory;
mod model_choice;
mod parse;
mod problem;
mod prompt;
mod report;
mod sections;
mod settings;
mod skill_resource;

pub use definitions::{Absence, Action, Definitions, RetryPolicy, Skill, ToolServer, ToolTransport};
pub use environment::EnvironmentAccess;
pub use init::{InitReport, Template, init};
pub use loader::{LoadedWorkspace, Loader, PlatformDirectories};
pub use memory::{Memory, MemoryFile};
pub use model_choice::ModelChoice;
pub use problem::{Problem, Severity};
pub use prompt::PromptContext;
pub use settings::{
    MemorySettings, ModelAlias, PromptSettings, Segment, Settings, WorkspaceContext, WorkspaceKind,
};
