//! The client against scripted servers that misbehave on purpose.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

mod connection_error;
mod follow;
mod server;
mod submit;
