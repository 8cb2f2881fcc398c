//! Typed client of the public gRPC API.
//!
//! [`Client`] has one method for every call and adds what callers would otherwise write themselves: [`Client::follow`]
//! resumes a stream of events after a broken connection without losing or repeating an event,
//! [`Client::wait_until_finished`] outlives a restart of the server, and [`Client::submit`] tries again only when
//! an idempotency key makes that safe. Errors are the domain's, with their stable codes.
//!
//! It never retries for ever: after [`ClientOptions::give_up_after`] without progress the last error is returned. A
//! server that has not answered once is a wrong address, not a restart, and fails at once.

mod client;
mod follow;
mod options;
mod reach;
mod retry;
mod rpc;
mod wait;

pub use client::Client;
pub use follow::{EventStream, FollowStream, Followed, Following, Target, terminal_state};
pub use options::ClientOptions;
pub use secrecy::SecretString;
