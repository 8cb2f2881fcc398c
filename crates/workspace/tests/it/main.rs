//! Integration tests: loads valid, malformed and hostile workspaces.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod codingcode;
mod foreign_formats;
mod full_workspace;
mod golden;
mod hostile;
mod init;
mod malformed;
mod memory;
mod opencode;
mod permissions;
mod precedence;
mod reload;
mod secrets;
mod support;
mod targets;
