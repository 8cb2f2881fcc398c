//! Decides what agents may do: rules, modes, and what is hidden in shell commands.
//!
//! A [`Ruleset`] holds the rules of all [layers](Layer), in order. It judges one call at a time: it is allowed, denied, or a
//! person has to be asked. The last rule that fits decides; of several things in one call the strictest counts; and
//! what an operator locked is never made milder.
//!
//! The crate neither reads nor waits for anything: the same rules, mode and call always give the same [`Verdict`], in a time
//! that is bounded by their size.
//!
//! # Paths
//!
//! They are resolved by their text alone and compared both relative to the workspace and absolute. Links are a matter of
//! the sandbox, which does not let anyone out of it.
//!
//! # Shell commands
//!
//! Every command in a script is judged on its own, wherever it stands: in a pipe, a group, a loop, a substitution, a string
//! that is given to a shell, behind `sudo` or `xargs`. What cannot be told, such as a command in a variable, is asked about as
//! soon as the rules forbid anything that it may be. A rule of the default layer is not reason enough for that.
//!
//! This protects from accidents and from models that are talked into something. It is no sandbox: a program that is
//! allowed to run, such as an interpreter or `make`, does what it likes within the sandbox it is in.
//!
//! Scripts are read by a small reader of our own. Of the parsers at hand, `yash-syntax` has a license that does not go with
//! ours, and `brush-parser` overflows the stack with a thousand nested substitutions, which ends the process, and brings 80
//! crates along. Neither tells what a wrapped command is, which is most of the work. The reader needs less than a parser:
//! wherever it is in doubt it says so, and the script counts as unknown.

mod always;
mod contradiction;
mod defaults;
mod judge;
mod layer;
mod names;
mod path;
mod plan;
mod ruleset;
mod shell;
mod subject;
mod verdict;
mod wildcard;

pub use contradiction::Contradiction;
pub use layer::Layer;
pub use names::{KEYS, opencode_key, permission_of};
pub use ruleset::Ruleset;
pub use verdict::{Ask, Asked, Denial, Verdict};
pub use wildcard::fits;
