//! What speaks to one model.

use std::{fmt::Debug, time::Duration};

use async_trait::async_trait;
use remuda_domain::error::{Code, Error};

use crate::{OnDelta, Request, Response};

/// Speaks one wire format.
///
/// Implementors make one attempt and say what a failure means; they do not try again by themselves. Dropping the future must end
/// the attempt at the provider too, as far as that can be done: it closes the connection. No error may hold a secret.
#[async_trait]
pub trait Provider: Debug + Send + Sync + 'static {
    async fn generate(&self, request: &Request, on_delta: OnDelta<'_>) -> Result<Response, AttemptError>;
}

/// Why an attempt failed, and what may be done about it.
#[derive(Debug)]
pub struct AttemptError {
    pub error: Error,
    pub retry: Retry,
    /// Whether the endpoint is to blame, rather than the request.
    pub counts: bool,
}

/// When trying again makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    Never,
    Soon,
    /// As the provider asked for.
    After(Duration),
}

impl AttemptError {
    /// The endpoint is fine, and would say the same again.
    pub(crate) fn never(code: Code, message: impl Into<String>) -> Self {
        Self { error: Error::new(code, message), retry: Retry::Never, counts: false }
    }

    /// The endpoint did not do its part.
    pub(crate) fn fault(code: Code, message: impl Into<String>) -> Self {
        Self { error: Error::new(code, message), retry: Retry::Soon, counts: true }
    }

    /// The model said something that cannot be understood; the next time it may do better.
    pub(crate) fn nonsense(message: impl Into<String>) -> Self {
        Self { error: Error::new(Code::ModelAnswerInvalid, message), retry: Retry::Soon, counts: false }
    }
}

impl From<Error> for AttemptError {
    fn from(error: Error) -> Self {
        Self { error, retry: Retry::Never, counts: false }
    }
}
