//! What is logged, and how a line looks.
//!
//! Everything that others can put into a line (messages, fields, texts of errors) is a value: its secrets are masked, its length is
//! bounded, and what a terminal or a reader of lines could take for more than text is escaped. Names are ours.

mod fields;
mod filter;
mod json;
mod layer;
mod levels;
mod panics;
mod pretty;
mod record;
mod secrets;
mod text;

pub use self::{
    filter::{AUDIT, TRACES},
    levels::{Level, Levels, check_change},
    secrets::{hide, hide_for_now},
};
pub(crate) use self::{layer::Lines, panics::log_panics, text::masked};

#[cfg(test)]
mod tests;
