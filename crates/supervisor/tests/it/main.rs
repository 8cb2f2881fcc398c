//! The program as its worker sees it: a process with two pipes.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod confine;
mod init;
mod peer;
mod supervise;
