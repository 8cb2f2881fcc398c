//! Workspaces as people write them, and as they should not.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod change;
mod codingcode;
mod foreign_details;
mod hostile;
mod init;
mod malformed;
mod memory;
mod merge;
mod opencode;
mod permissions;
mod secrets;
mod support;
mod targets;
mod whole;
