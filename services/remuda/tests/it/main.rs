//! The real binary, end to end: one process, many processes, and what happens when they die.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "helpers of tests")]

mod access;
mod agents;
mod api;
mod approvals;
mod bad_input;
mod browser;
mod budgets;
mod cancel;
mod cardinality;
mod cli_agents;
mod cluster;
mod control;
mod crash;
mod dry_run;
mod embedded;
mod examples;
mod gc;
mod harness;
mod hostile;
mod http;
mod http_hostile;
mod live_output;
mod logging;
mod messages;
mod metrics;
mod order;
mod pty;
mod receiver;
mod recovery;
mod reflection;
mod sandboxes;
mod scraped;
mod split;
mod sse;
mod start;
mod team;
mod top;
mod traces;
mod waiting;
mod web;
mod webhooks;
mod wire;
