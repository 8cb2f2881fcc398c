//! What a refused request is told.

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

/// What handlers give back.
pub type Outcome<T> = Result<T, Refused>;

/// A request that was refused, or could not be served. [`edge`](crate::edge) words it.
#[derive(Debug)]
pub struct Refused(pub Error);

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

/// Travels with the response until the edge, where the id of the request is known.
#[derive(Clone)]
pub(crate) struct Refusal {
    pub(crate) code: Code,
    pub(crate) message: String,
    pub(crate) details: Option<ErrorDetails>,
}

impl IntoResponse for Refused {
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
        response.extensions_mut().insert(Refusal::from(&error));
        response
    }
}

fn status(code: Code) -> StatusCode {
    StatusCode::from_u16(code.http()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

impl From<&Error> for Refusal {
    fn from(error: &Error) -> Self {
        let retry_after_ms =
            error.retry_delay().map(|pause| u64::try_from(pause.as_millis()).unwrap_or(u64::MAX));
        let field = error.field().map(str::to_owned);
        let details =
            (field.is_some() || retry_after_ms.is_some()).then_some(ErrorDetails { field, retry_after_ms });
        Self { code: error.code(), message: error.message().to_owned(), details }
    }
}

impl Refusal {
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

/// An error as streams tell it in the middle of their work.
#[must_use]
pub fn error_body(error: &Error, request_id: &str) -> ErrorBody {
    Refusal::from(error).body(request_id)
}

/// Every error has this form.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ErrorBody {
    pub error: ErrorInfo,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ErrorInfo {
    /// Stable, for programs.
    #[schema(examples("session_not_found"))]
    pub code: String,
    /// For people.
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<ErrorDetails>,
    /// By which the request is found in the server's log; also in the header `x-request-id`.
    pub request_id: String,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ErrorDetails {
    /// The field of the request that is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// When trying again makes sense.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

fn described<const N: usize>(answers: [(&str, &str); N]) -> BTreeMap<String, RefOr<Described>> {
    let refused = |(status, text): (&str, &str)| {
        let content = Content::new(Some(RefOr::Ref(Ref::from_schema_name("ErrorBody"))));
        let response = ResponseBuilder::new().description(text).content("application/json", content);
        (status.to_owned(), RefOr::T(response.build()))
    };
    answers.into_iter().map(refused).collect()
}

/// The answers that every operation with a body can give besides, for the description of the API.
#[derive(Debug)]
pub struct Unreadable;

impl IntoResponses for Unreadable {
    fn responses() -> BTreeMap<String, RefOr<Described>> {
        described([("413", "The body is too large."), ("415", "The body is not JSON.")])
    }
}

/// The answers that every operation can give, for the description of the API.
#[derive(Debug)]
pub struct Refusals;

impl IntoResponses for Refusals {
    fn responses() -> BTreeMap<String, RefOr<Described>> {
        described([
            ("400", "A field has a value that is not allowed; details.field names it."),
            ("401", "No valid API key came with the request."),
            ("403", "The key's scopes, or the rules, do not allow this."),
            ("404", "It does not exist, or belongs to another tenant."),
            ("429", "Too much at once; Retry-After says when to try again."),
            ("500", "A fault in the server."),
            ("503", "A part that the request needs does not answer at the moment."),
            ("default", "Any other refusal; error.code says which."),
        ])
    }
}
