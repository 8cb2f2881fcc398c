//! Typed client of the public gRPC API.
//!
//! [`Client`] has one method per call and adds what callers would otherwise write themselves: [`Client::follow`]
//! resumes an event stream after a broken connection without losing or repeating an event,
//! [`Client::wait_until_finished`] survives a restart of the server, and [`Client::submit`] retries only when an
//! idempotency key makes that safe. Errors are the domain's, with their stable codes.
//!
//! It never retries forever: after [`ClientOptions::give_up_after`] without progress it returns the last error. A
//! server that has never responded counts as a wrong address, not as a restart, and fails immediately.

mod client;
mod connection_error;
mod follow;
mod options;
mod retry;
mod rpc;
mod wait;

pub use client::Client;
pub use follow::{EventStream, FollowItem, FollowOptions, FollowStream, Target, terminal_state};
pub use options::ClientOptions;
pub use secrecy::SecretString;
