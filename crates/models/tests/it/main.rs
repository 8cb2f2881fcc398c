//! Models over wires that a test plays, and out of scenarios.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod anthropic;
mod bench;
mod breaker;
mod connection;
mod faults;
mod openai;
mod scripted;
mod sent;
mod server;
