//! Filters, formats and writes log lines.
//!
//! All values in a line (messages, fields, error texts) are untrusted: secrets are masked, the length is bounded, and
//! characters that a terminal or a log parser could interpret are escaped. Field names are our own.

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
    secrets::{mask_secret, mask_secrets_temporarily},
};
pub(crate) use self::{layer::LogLayer, panics::log_panics, text::masked};

#[cfg(test)]
mod tests;
