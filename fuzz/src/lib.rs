//! Fuzzes every parser that reads bytes from outside: from commands, model providers, workspaces, clients and the bus.
//!
//! A [`Target`] takes any bytes and panics if a property of its parser does not hold. The [driver](drive) mutates the inputs of
//! a corpus, which is in `fuzz/corpus/TARGET`. An input that makes the parser behave in a new way joins the corpus for the rest
//! of the run, so it needs no instrumented build: the tests of this crate replay every corpus and fuzz each target shortly,
//! `remuda-fuzz` does so for as long as told.

mod drive;
mod mutate;
mod targets;

pub use self::{
    drive::{Finding, Limit, Report, corpus, drive, replay},
    targets::{TARGETS, Target},
};
