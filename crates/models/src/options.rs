//! How long and how often models are asked.

use std::time::Duration;

use crate::AddressRule;

/// Limits of every call.
#[derive(Clone, Debug)]
pub struct ModelOptions {
    pub connect_timeout: Duration,
    /// From sending the request to the first byte of the answer.
    pub first_byte_timeout: Duration,
    /// Between two pieces of the answer; keep-alive signs count as pieces.
    pub idle_timeout: Duration,
    /// For one attempt as a whole, however lively it is.
    pub attempt_timeout: Duration,
    pub max_attempts: u32,
    /// Before the second attempt; doubles with each.
    pub base_delay: Duration,
    pub max_delay: Duration,
    /// The longest wait that a provider may ask for; a longer one ends the call.
    pub max_retry_after: Duration,
    /// Failures in a row that open an endpoint's breaker.
    pub breaker_failures: u32,
    /// How long an open breaker lets nobody through; then one call may try.
    pub breaker_open: Duration,
    /// How long a call waits, in all, for an open breaker. Nothing means that it fails at once.
    pub breaker_patience: Duration,
    pub max_response_bytes: usize,
    /// Of one event of a streamed answer.
    pub max_event_bytes: usize,
    /// Endpoints whose connections and breakers are remembered.
    pub max_endpoints: usize,
    /// Where models of workspaces may be; anywhere without one.
    pub workspace_rule: Option<AddressRule>,
}

impl Default for ModelOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            first_byte_timeout: Duration::from_secs(120),
            idle_timeout: Duration::from_secs(120),
            attempt_timeout: Duration::from_secs(30 * 60),
            max_attempts: 5,
            base_delay: Duration::from_secs(2),
            max_delay: Duration::from_secs(30),
            max_retry_after: Duration::from_secs(60),
            breaker_failures: 5,
            breaker_open: Duration::from_secs(15),
            breaker_patience: Duration::from_secs(30),
            max_response_bytes: 16 * 1024 * 1024,
            max_event_bytes: 4 * 1024 * 1024,
            max_endpoints: 256,
            workspace_rule: None,
        }
    }
}
