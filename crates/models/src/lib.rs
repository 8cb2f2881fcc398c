//! Talks to models.
//!
//! [`Models`] is what the rest of the system uses: given a model's definition it answers requests, with retries, time
//! limits and a circuit breaker per endpoint around the provider that speaks its wire format. A call is cancelled by dropping it,
//! which closes the connection.

mod request;
mod response;

pub use request::{ChatMessage, ChatRole, Content, Request, ToolChoice, ToolSpec};
pub use response::{Delta, OnDelta, Response, ToolRequest};
