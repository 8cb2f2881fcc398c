//! Tests of the native tools in a local sandbox.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod background;
mod bash;
mod edit;
mod files;
mod fixture;
mod hostile;
mod noop;
mod registry;
mod search;
mod server;
mod todo;
mod web;
mod web_search;
