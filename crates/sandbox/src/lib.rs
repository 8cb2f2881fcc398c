//! Where tools execute.
//!
//! A [`Backend`] gives a session a [`Sandbox`]: a place with the session's files in which commands run. What holds for
//! every backend is written at the traits and checked by one conformance suite (`tests/it`): a command leaves no
//! process behind, whichever way it ends; what is kept of its output is bounded; file paths cannot lead out of the
//! workspace. Adding a backend is one module behind these traits and one line in the suite.
//!
//! The [`local`] backend runs commands as children of this process. It contains accidents, not attackers: a command
//! sees the machine as the worker's user does. Use it for work you would run yourself.

mod backends;
mod book;
mod capture;
mod command;
pub mod docker;
mod files;
mod groups;
pub mod guard;
mod lazy;
pub mod local;
mod output;
pub mod path;
mod search;
mod supervised;
mod supervisor_binary;
mod traits;

pub use backends::Backends;
pub use book::SandboxBook;
pub use capture::Captured;
pub use command::{
    Command, DEFAULT_OUTPUT_LIMIT, ExecResult, ExecStatus, MAX_ARGUMENT_BYTES, MAX_STDIN_BYTES, Program,
    Spill, Usage, check_script,
};
pub use docker::{DockerBackend, DockerOptions};
pub use guard::Guard;
pub use lazy::LazySandbox;
pub use local::{Hardening, LocalBackend, LocalOptions};
pub use output::{NoOutput, OutputSink, OutputStream};
pub use search::{GlobAnswer, GlobQuery, GrepAnswer, GrepMatch, GrepMode, GrepQuery};
pub use traits::{
    Backend, ByteRange, Entry, EntryKind, Existing, ExistingKind, Feature, FeatureState, FileContents,
    FileKind, FileStat, Listing, MAX_READ_BYTES, Sandbox, SandboxRequest, WriteMode, Written,
};
