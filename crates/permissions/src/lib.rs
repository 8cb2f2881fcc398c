//! Decides whether tool calls are allowed: permission rules, permission modes, and analysis of shell commands.
//!
//! A [`Ruleset`] holds the rules of all [layers](Layer), in order. It judges one call at a time: the call is allowed,
//! denied, or needs approval by a person. The last matching rule decides. If a call has several subjects, such as the
//! commands of a script, the strictest decision counts. Later layers cannot relax a rule that an operator has locked.
//!
//! A tool's [descriptor](remuda_domain::tool::ToolDescriptor) says which permission governs it and which part of a call is
//! judged; the crate knows no tool by name.
//!
//! The crate does no I/O: the same rules, mode and call always give the same [`Verdict`], in time bounded by their size.
//!
//! # Paths
//!
//! Paths are resolved lexically, and compared both relative to the workspace and absolute. Links are left to the sandbox,
//! which confines access to the workspace.
//!
//! # Shell commands
//!
//! Every command in a script is judged on its own, wherever it is: in a pipe, a group, a loop, a substitution, a string
//! argument of a shell, behind `sudo` or `xargs`. A command that is not known statically, such as the value of a variable,
//! needs approval as soon as a rule that is not built in forbids anything it may be.
//!
//! Some programs execute something else: code of files, programs that options or settings name. A
//! table (`shell/executors`) knows them. A rule that allows such a command has to name what executes: `git *` does not
//! allow `git -c core.fsmonitor=x status`, and `cargo *` does not allow `cargo run`.
//!
//! This protects against accidents and against manipulated models. It is not a sandbox: a program that may run, such as an
//! interpreter or `make`, can do anything within its sandbox.
//!
//! Scripts are parsed by a small parser in this crate. Of the available parsers, `yash-syntax` has an incompatible license,
//! and `brush-parser` overflows the stack on a thousand nested substitutions, which aborts the process, and adds 80 crates.
//! Neither finds wrapped commands, which is most of the work. This parser may be incomplete: where it is in doubt, the
//! script counts as unknown.

mod always_rules;
mod contradiction;
mod defaults;
mod evaluate;
mod layer;
mod path;
mod permission_names;
mod plan_mode;
mod ruleset;
mod shell;
mod subject;
mod verdict;
mod wildcard;

pub use contradiction::Contradiction;
pub use layer::Layer;
pub use permission_names::{is_known_permission, opencode_key};
pub use ruleset::Ruleset;
pub use verdict::{Ask, Denial, ProposedCall, Verdict};
pub use wildcard::fits;
