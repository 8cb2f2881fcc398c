//! Error responses.

use std::collections::BTreeMap;

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use hyper::{
    StatusCode,
    header::{HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE},
};
use remuda_domain::{Code, Error};
use serde::Serialize;
use utoipa::{
    IntoResponses, ToSchema,
    openapi::{Content, Ref, RefOr, ResponseBuilder, response::Response as Described},
};

/// The result of a handler.
pub type Outcome<T> = Result<T, ApiError>;

/// The error of a request. [`edge`](crate::edge) renders the body.
#[derive(Debug)]
pub struct ApiError(pub Error);

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

/// Response extension with the parts of an error body. The edge, which knows the request's id, renders it.
#[derive(Clone)]
pub(crate) struct ErrorParts {
    pub(crate) code: Code,
    pub(crate) message: String,
    pub(crate) details: Option<ErrorDetails>,
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let error = self.0;
        remuda_grpc::log(&error);
        let mut response = status(error.code()).into_response();
        let headers = response.headers_mut();
        if let Some(pause) = error.retry_delay() {
            headers.insert(RETRY_AFTER, HeaderValue::from(pause.as_secs().max(1)));
        }
        if error.code() == Code::Unauthenticated {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response.extensions_mut().insert(ErrorParts::from(&error));
        response
    }
}

fn status(code: Code) -> StatusCode {
    StatusCode::from_u16(code.http()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

impl From<&Error> for ErrorParts {
    fn from(error: &Error) -> Self {
        let retry_after_ms =
            error.retry_delay().map(|pause| u64::try_from(pause.as_millis()).unwrap_or(u64::MAX));
        let field = error.field().map(str::to_owned);
        let details =
            (field.is_some() || retry_after_ms.is_some()).then_some(ErrorDetails { field, retry_after_ms });
        Self { code: error.code(), message: error.message().to_owned(), details }
    }
}

impl ErrorParts {
    pub(crate) fn body(self, request_id: &str) -> ErrorBody {
        ErrorBody {
            error: ErrorInfo {
                code: self.code.as_str().to_owned(),
                message: self.message,
                details: self.details,
                request_id: request_id.to_owned(),
            },
        }
    }

    pub(crate) fn render(self, request_id: &str) -> Response {
        Json(self.body(request_id)).into_response()
    }
}

/// The body of an error that occurs in the middle of a stream.
#[must_use]
pub fn error_body(error: &Error, request_id: &str) -> ErrorBody {
    ErrorParts::from(error).body(request_id)
}

/// The form of every error.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ErrorBody {
    pub error: ErrorInfo,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ErrorInfo {
    /// A stable code for programs.
    #[schema(examples("session_not_found"))]
    pub code: String,
    /// A message for people.
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<ErrorDetails>,
    /// The id of the request in the server's log, also sent as the header `x-request-id`.
    pub request_id: String,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ErrorDetails {
    /// The invalid field of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// How long to wait before a retry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

fn responses<const N: usize>(errors: [(&str, &str); N]) -> BTreeMap<String, RefOr<Described>> {
    let response = |(status, text): (&str, &str)| {
        let content = Content::new(Some(RefOr::Ref(Ref::from_schema_name("ErrorBody"))));
        let response = ResponseBuilder::new().description(text).content("application/json", content);
        (status.to_owned(), RefOr::T(response.build()))
    };
    errors.into_iter().map(response).collect()
}

/// Error responses of every operation with a body, for the OpenAPI document.
#[derive(Debug)]
pub struct BodyErrors;

impl IntoResponses for BodyErrors {
    fn responses() -> BTreeMap<String, RefOr<Described>> {
        responses([("413", "The body is too large."), ("415", "The body is not JSON.")])
    }
}

/// Error responses of every operation, for the OpenAPI document.
#[derive(Debug)]
pub struct CommonErrors;

impl IntoResponses for CommonErrors {
    fn responses() -> BTreeMap<String, RefOr<Described>> {
        responses([
            ("400", "A field has an invalid value; details.field names it."),
            ("401", "The request has no valid API key."),
            ("403", "The key's scopes, or the permission rules, do not allow this."),
            ("404", "The resource does not exist, or belongs to another tenant."),
            ("429", "Too many requests; Retry-After says when to retry."),
            ("500", "Internal server error."),
            ("503", "A dependency of the server, such as the database, is unavailable."),
            ("default", "Any other error; error.code says which."),
        ])
    }
}
