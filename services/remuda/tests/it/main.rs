//! End-to-end tests of the `remuda` binary: embedded, split into processes, and with processes that die.

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
mod hostile_bus;
mod http;
mod http_client;
mod labels;
mod live_output;
mod logging;
mod malformed_grpc;
mod malformed_http;
mod messages;
mod metrics;
mod order;
mod pty;
mod raw_grpc;
mod recovery;
mod reflection;
mod sandboxes;
mod scrape;
mod split;
mod sse;
mod start;
mod submit_and_wait;
mod team;
mod top;
mod traces;
mod webhook_receiver;
mod webhooks;
