//! What every gRPC server of ours shares: who is calling, how long a call may take, how large it may be.

mod auth;
mod call;
pub mod keys;
mod services;
mod standing;

pub use auth::{Authenticator, KeyPolicy};
pub use call::{Gate, log, log_and_convert, traceparent};
pub use services::{basics, router};
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
