//! Tests of model clients against a scripted HTTP server, and of the scripted provider.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod anthropic_responses;
mod breaker;
mod connection;
mod fixtures;
mod openai_responses;
mod provider_errors;
mod request_encoding;
mod scripted;
mod test_server;
