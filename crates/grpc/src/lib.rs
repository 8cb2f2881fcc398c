//! What every gRPC server of ours shares: who is calling, how long a call may take, how large it may be.

mod auth;
mod call;
mod context;
mod front;
pub mod keys;
mod requests;
mod services;
mod span;
mod standing;

pub use auth::{Authenticator, KeyPolicy};
pub use call::{Gate, log, log_and_convert};
pub use context::{REQUEST_ID, RequestId, caller_of, identify, note_caller, of_request};
pub use front::Front;
pub use requests::Requests;
pub use services::{basics, router};
pub use span::{cause, of_route, within_span};
pub use standing::Standing;

/// Limits on both directions of a generated server: `limited!(RunServiceServer::new(service))`.
#[macro_export]
macro_rules! limited {
    ($server:expr) => {
        $server
            .max_decoding_message_size(remuda_domain::limits::MAX_MESSAGE_BYTES)
            .max_encoding_message_size(remuda_domain::limits::MAX_MESSAGE_BYTES)
    };
}
