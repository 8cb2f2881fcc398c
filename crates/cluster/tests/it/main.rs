//! Real clusters, and that each fault does what it says.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "helpers of tests")]

mod faults;
mod harness;
mod life;
