//! Tests with real clusters: their lifecycle and the effect of each fault.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "helpers of tests")]

mod faults;
mod harness;
mod lifecycle;
