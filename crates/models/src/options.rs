//! Timeouts, retries and limits of model calls.

use std::time::Duration;

use crate::AddressRule;

/// Options that apply to every model call.
#[derive(Clone, Debug)]
pub struct ModelOptions {
    pub connect_timeout: Duration,
    /// From sending the request to the first byte of the response.
    pub first_byte_timeout: Duration,
    /// Between two chunks of the response; keep-alive comments count.
    pub idle_timeout: Duration,
    /// For one whole attempt, even if it makes progress.
    pub attempt_timeout: Duration,
    pub max_attempts: u32,
    /// Delay before the second attempt; doubles with each further attempt.
    pub base_delay: Duration,
    pub max_delay: Duration,
    /// Maximum delay that a provider may ask for. A longer one ends the call.
    pub max_retry_after: Duration,
    /// Consecutive failures that open an endpoint's breaker.
    pub breaker_failures: u32,
    /// How long a breaker stays open before one call may probe.
    pub breaker_open: Duration,
    /// How long a call waits for an open breaker, over all attempts. Zero means that it fails immediately.
    pub max_breaker_wait: Duration,
    pub max_response_bytes: usize,
    /// Of one event of a streamed response.
    pub max_event_bytes: usize,
    /// Endpoints whose connections and breakers are cached.
    pub max_endpoints: usize,
    /// Restricts the addresses of workspace models. `None` allows any address.
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
            max_breaker_wait: Duration::from_secs(30),
            max_response_bytes: 16 * 1024 * 1024,
            max_event_bytes: 4 * 1024 * 1024,
            max_endpoints: 256,
            workspace_rule: None,
        }
    }
}
