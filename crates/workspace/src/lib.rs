//! Reads what a workspace declares: agents, models, skills, actions, tool servers, prompts.
//!
//! A [`Loader`] turns a directory into [`Definitions`]: first the built-in agents, over them what the operator offers to
//! all workspaces, over that what the workspace has, be it written for Open Agent Harness (`.openharness`), OpenCode
//! (`.opencode`, `opencode.json`) or CodingCode (`.codingcode`). Definitions are versioned by their content: a run keeps
//! the version it started with, and [`Loader::current`] gives the newest one without a restart.
//!
//! Reading never fails. A definition that cannot be used is left out and becomes a [`Problem`] with file, line, what was
//! found and what was expected; all others work. What is probably a mistake, such as an unknown key, is a warning.
//!
//! Workspaces are written by tenants. So nothing outside is read through links, everything has a bound, and of the
//! environment (`${env.NAME}` in the strings of YAML) they see only what [`EnvironmentAccess`] allows. Values of the
//! environment are in no problem. Keys and headers of models are in no version.
//!
//! This crate executes nothing, opens no connection and watches nothing. It blocks on the file system.

mod agents;
mod cache;
mod choose;
mod definitions;
mod environment;
mod files;
mod init;
mod loader;
mod memory;
mod parts;
mod problem;
mod prompt;
mod report;
mod resource;
mod settings;
mod source;
mod targets;
mod text;

pub use choose::Choice;
pub use definitions::{Absence, Action, Definitions, RetryPolicy, Skill, ToolServer, ToolTransport};
pub use environment::EnvironmentAccess;
pub use init::{InitReport, Template, init};
pub use loader::{Current, Loader, PlatformDirectories};
pub use memory::{Memory, MemoryFile};
pub use problem::{Problem, Severity};
pub use prompt::Audience;
pub use settings::{
    MemorySettings, ModelAlias, PromptSettings, Segment, Settings, WorkspaceContext, WorkspaceKind,
};
