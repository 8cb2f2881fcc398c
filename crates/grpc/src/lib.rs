//! Shared parts of all servers: authentication, limits, rules for browsers, metrics and traces.

mod auth;
mod body_budget;
mod browser_rules;
mod call;
mod client_address;
mod failed_auth;
mod key_validity;
pub mod keys;
mod metered_body;
mod request_context;
mod request_metrics;
mod request_state;
mod router;
mod services;
mod span;

pub use auth::{Authenticator, KeyPolicy, RequestLimits};
pub use browser_rules::BrowserRules;
pub use call::{Gate, log, log_and_convert};
pub use key_validity::KeyValidity;
pub use metered_body::{MeteredBody, body_error};
pub use request_context::{REQUEST_ID, RequestId, caller_trace, identify, record_caller, request_span};
pub use request_metrics::RequestMetrics;
pub use request_state::{RequestState, within_limits};
pub use router::GrpcRouter;
pub use services::{base_services, router};
pub use span::{cause, http_span, within_span};

/// Sets the message size limits of a generated server: `limited!(RunServiceServer::new(service))`.
#[macro_export]
macro_rules! limited {
    ($server:expr) => {
        $server
            .max_decoding_message_size(remuda_domain::limits::MAX_MESSAGE_BYTES)
            .max_encoding_message_size(remuda_domain::limits::MAX_MESSAGE_BYTES)
    };
}
