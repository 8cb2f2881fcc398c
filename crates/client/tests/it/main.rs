//! The client against small servers that misbehave on purpose.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

mod follow;
mod reach;
mod server;
mod submit;
