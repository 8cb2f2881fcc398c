//! Clients for language models.
//!
//! [`Models`] is the entry point. Given a model's definition, it sends requests through the provider that speaks its
//! wire format, with retries, timeouts and a circuit breaker per endpoint. Dropping a call cancels it and closes its
//! connection.
//!
//! # Addresses
//!
//! A definition's `url` is a base URL, with or without a `/` at the end. Its query is kept.
//!
//! | provider | `url` | request URL |
//! |---|---|---|
//! | `openai` | none | `https://api.openai.com/v1/chat/completions` |
//! | `openai`, `openai-compatible` | `https://host` | `https://host/v1/chat/completions` |
//! | | `https://host/any/path` | `https://host/any/path/chat/completions` |
//! | `anthropic` | none | `https://api.anthropic.com/v1/messages` |
//! | | `https://host/any/path` or `https://host/any/path/v1` | `https://host/any/path/v1/messages` |
//!
//! A URL that already ends in `/chat/completions` or `/messages` is used unchanged.
//!
//! # Metadata
//!
//! Two entries of a definition's `metadata` matter here. `extra_body` is an object whose entries are added to each
//! request, for options that only one server knows (`reasoning_effort`, `thinking`, …). `send_reasoning: true` sends the
//! model's reasoning back to an OpenAI-compatible server, which some require and others reject.
//!
//! # What it does not do
//!
//! It does not follow redirects, use proxies from the environment, compute costs, or choose models.

mod anthropic;
mod breaker;
#[doc(hidden)]
pub mod fuzzing;
mod http;
mod models;
mod openai;
mod options;
mod provider;
mod provider_error;
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
