//! The trait that each wire format implements.

use std::{fmt::Debug, time::Duration};

use async_trait::async_trait;
use remuda_domain::error::{Code, Error};

use crate::{OnDelta, Request, Response};

/// Speaks one wire format.
///
/// Implementors make one attempt and classify its failure; they do not retry. Dropping the future must also end the
/// attempt at the provider, as far as possible, by closing the connection. No error may contain a secret.
#[async_trait]
pub trait Provider: Debug + Send + Sync + 'static {
    async fn generate(&self, request: &Request, on_delta: OnDelta<'_>) -> Result<Response, AttemptError>;
}

/// Why an attempt failed, and whether a retry makes sense.
#[derive(Debug)]
pub struct AttemptError {
    pub error: Error,
    pub retry: Retry,
    /// Whether the failure counts against the endpoint's breaker: the endpoint is at fault, not the request.
    pub endpoint_fault: bool,
}

/// When a retry makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    Never,
    Soon,
    /// After the delay that the provider asked for.
    After(Duration),
}

impl AttemptError {
    /// The endpoint works, and would reject the request again.
    pub(crate) fn never(code: Code, message: impl Into<String>) -> Self {
        Self { error: Error::new(code, message), retry: Retry::Never, endpoint_fault: false }
    }

    /// The endpoint is at fault.
    pub(crate) fn fault(code: Code, message: impl Into<String>) -> Self {
        Self { error: Error::new(code, message), retry: Retry::Soon, endpoint_fault: true }
    }

    /// The response is invalid; the next one may be valid.
    pub(crate) fn invalid_response(message: impl Into<String>) -> Self {
        Self {
            error: Error::new(Code::ModelAnswerInvalid, message),
            retry: Retry::Soon,
            endpoint_fault: false,
        }
    }
}

impl From<Error> for AttemptError {
    fn from(error: Error) -> Self {
        Self { error, retry: Retry::Never, endpoint_fault: false }
    }
}
