//! The `Idempotency-Key` header.

use axum::extract::FromRequestParts;
use hyper::http::request::Parts;
use remuda_domain::Error;
use remuda_http::ApiError;

/// The value of `Idempotency-Key`. Empty if there is none.
pub(super) struct IdempotencyKey(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for IdempotencyKey {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let Some(value) = parts.headers.get("idempotency-key") else { return Ok(Self(String::new())) };
        let unreadable = |_| Error::invalid("idempotency-key", "expected visible ASCII characters");
        let key = value.to_str().map_err(unreadable)?;
        if key.is_empty() {
            return Err(Error::invalid("idempotency-key", "expected at least one character").into());
        }
        Ok(Self(key.to_owned()))
    }
}
