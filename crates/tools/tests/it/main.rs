//! The native tools in a local sandbox.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod bash;
mod bench;
mod files;
mod noop;
mod registry;
