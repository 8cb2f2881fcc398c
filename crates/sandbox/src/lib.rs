//! Sandboxes in which tools execute.
//!
//! A [`Backend`] gives a session a [`Sandbox`]: the session's files plus a place to run commands. The traits
//! document the guarantees of every backend, and one conformance suite (`tests/it`) checks them: a command
//! leaves no process behind, however it ends; the captured output is bounded; file paths cannot leave the
//! workspace.
//!
//! A new backend whose commands run elsewhere is one module: a [`remote::Provisioner`], which creates and removes
//! containers, pods or machines, and one line in the suite. The [`docker`] backend is one.
//!
//! The [`local`] backend runs commands as processes of the worker's user. It contains accidents, not
//! attackers: a command sees the machine as the worker's user does. Use it for work you would run yourself.

mod backends;
mod command;
mod disk_watch;
pub mod docker;
mod files;
pub mod guard;
mod lazy_sandbox;
pub mod local;
mod output_capture;
mod output_sink;
pub mod path;
mod process_groups;
mod registry;
pub mod remote;
mod search_query;
mod shell_guard;
mod supervised_command;
pub mod supervisor_binary;
mod traits;

pub use backends::Backends;
pub use command::{
    Command, DEFAULT_OUTPUT_LIMIT, ExecResult, ExecStatus, MAX_ARGUMENT_BYTES, MAX_STDIN_BYTES, Program,
    Spill, Usage, check_script,
};
pub use docker::{DockerBackend, DockerOptions};
pub use guard::Guard;
pub use lazy_sandbox::LazySandbox;
pub use local::{Hardening, LocalBackend, LocalOptions};
pub use output_capture::CapturedOutput;
pub use output_sink::{NoOutput, OutputSink, OutputStream};
pub use registry::SandboxRegistry;
pub use search_query::{GlobQuery, GlobResult, GrepMatch, GrepMode, GrepQuery, GrepResult};
pub use shell_guard::guarded_script;
pub use traits::{
    Backend, ByteRange, EngineResource, EngineResourceKind, Entry, EntryKind, Feature, FeatureState,
    FileContents, FileKind, FileStat, Listing, MAX_READ_BYTES, Sandbox, SandboxRequest, WriteMode,
    WriteOutcome,
};
