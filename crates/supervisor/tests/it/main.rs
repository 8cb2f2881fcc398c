//! Tests of the supervisor program from the worker's side: a process with two pipes.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod confine;
mod init;
mod supervise;
mod supervisor_process;
