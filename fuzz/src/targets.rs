//! The parsers, and what must hold for every input.

mod bus;
mod frames;
mod providers;
mod requests;
mod shell;
mod workspaces;

use std::{
    fmt::Debug,
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

/// A parser with its properties.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub name: &'static str,
    /// Panics if a property does not hold. Returns a number that tells different behaviour of the parser apart.
    pub run: fn(&[u8]) -> u64,
    /// Words of the input's language.
    pub dictionary: &'static [&'static str],
    /// Inputs for a short run: some targets start processes.
    pub inputs: u64,
}

pub const TARGETS: &[Target] = &[
    frames::SUPERVISOR,
    frames::COPIER,
    providers::SSE,
    providers::OPENAI,
    providers::ANTHROPIC,
    workspaces::FRONTMATTER,
    workspaces::YAML,
    workspaces::JSON,
    workspaces::FILES,
    shell::VERDICT,
    shell::EXECUTION,
    requests::PROTO,
    requests::HTTP,
    bus::PROOFS,
    bus::GRANTS,
];

/// A number for behaviour that is described by a value. Digits do not count: positions and counts would make every input
/// a kind of its own.
fn kind(behaviour: impl Debug) -> u64 {
    let mut text = format!("{behaviour:?}");
    text.retain(|next| !next.is_ascii_digit());
    let end = text.char_indices().nth(200).map_or(text.len(), |(end, _)| end);
    let mut hasher = DefaultHasher::new();
    text[..end].hash(&mut hasher);
    hasher.finish()
}
