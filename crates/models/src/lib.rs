//! Talks to models.
//!
//! [`Models`] is what the rest of the system uses: given a model's definition it answers requests, with retries, time
//! limits and a circuit breaker per endpoint around the provider that speaks its wire format. A call is cancelled by dropping it,
//! which closes the connection.
//!
//! # Addresses
//!
//! A definition's `url` is a base: with or without a `/` at the end, with a query that is kept.
//!
//! | provider | `url` | asked |
//! |---|---|---|
//! | `openai` | none | `https://api.openai.com/v1/chat/completions` |
//! | `openai`, `openai-compatible` | `https://host` | `https://host/v1/chat/completions` |
//! | | `https://host/any/path` | `https://host/any/path/chat/completions` |
//! | `anthropic` | none | `https://api.anthropic.com/v1/messages` |
//! | | `https://host/any/path` or `https://host/any/path/v1` | `https://host/any/path/v1/messages` |
//!
//! An address that already ends in `/chat/completions` or `/messages` is taken as it is.
//!
//! # Metadata
//!
//! Of a definition's `metadata` two entries matter here. `extra_body` is an object whose entries are put into each request, for what
//! only one server knows (`reasoning_effort`, `thinking`, …). `send_reasoning: true` sends the model's reasoning back to an
//! OpenAI-compatible server, which some want and others refuse.
//!
//! # What it does not do
//!
//! It does not follow redirects, use proxies of the environment, count money, or decide which model to ask.

mod anthropic;
mod breaker;
mod failure;
mod http;
mod models;
mod openai;
mod options;
mod provider;
mod request;
mod response;
mod retry;
mod scripted;
mod sse;
mod tool_input;

pub use http::AddressRule;
pub use models::{Models, model_labels};
pub use options::ModelOptions;
pub use provider::{AttemptError, Provider, Retry};
pub use request::{ChatMessage, ChatRole, Content, Request, ToolChoice, ToolSpec};
pub use response::{Delta, OnDelta, Response, ToolRequest};
pub use scripted::check_scenario;
