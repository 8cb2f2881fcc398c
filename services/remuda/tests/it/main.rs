//! The real binary, end to end: one process, many processes, and what happens when they die.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "helpers of tests")]

mod access;
mod agents;
mod api;
mod approvals;
mod bad_input;
mod budgets;
mod cancel;
mod cli_agents;
mod cluster;
mod control;
mod crash;
mod dry_run;
mod embedded;
mod harness;
mod hostile;
mod messages;
mod order;
mod recovery;
mod reflection;
mod sandboxes;
mod split;
mod start;
mod team;
mod wire;
