//! Classifies the errors of providers.

mod secrets;

use std::error::Error as _;

use remuda_domain::error::{Code, Error};
use reqwest::{StatusCode, header::HeaderMap};
use serde_json::Value;

pub(crate) use secrets::Secrets;

use crate::{AttemptError, provider::Retry, retry::retry_after};

/// Phrases by which servers report that the context is too long. Lower case.
const TOO_LONG: [&str; 12] = [
    "context_length_exceeded",
    "exceed_context_size",
    "request_too_large",
    "prompt is too long",
    "input is too long",
    "maximum context length",
    "context length of",
    "exceed context limit",
    "exceeds the context window",
    "available context size",
    "maximum number of tokens allowed",
    "reduce the length of the messages",
];

/// Converts the errors of one endpoint.
#[derive(Clone, Debug)]
pub(crate) struct ErrorMapper {
    pub(crate) host: String,
    pub(crate) secrets: Secrets,
}

/// The content of a server's error response.
#[derive(Debug, Default)]
struct ServerError {
    message: String,
    /// The server's names for the kind of error, lower case.
    kinds: Vec<String>,
}

impl ErrorMapper {
    /// A response with an error status.
    pub(crate) fn status_error(&self, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> AttemptError {
        let server_error = serde_json::from_slice(body)
            .map_or_else(|_| ServerError::of_text(body), |value: Value| ServerError::of(&value));
        let mut error = self.attempt_error(status, &server_error);
        if let (Retry::Soon, Some(after)) = (error.retry, retry_after(headers)) {
            error.retry = Retry::After(after);
        }
        if headers.get("x-should-retry").is_some_and(|value| value == "false") {
            error.retry = Retry::Never;
        }
        error
    }

    /// An error in the middle of a response that began with success.
    pub(crate) fn stream_error(&self, value: &Value) -> AttemptError {
        let server_error = ServerError::of(value);
        self.attempt_error(server_error.status(), &server_error)
    }

    fn attempt_error(&self, status: StatusCode, server_error: &ServerError) -> AttemptError {
        let (code, retry, endpoint_fault) = classify(status, server_error);
        let message = self.secrets.clean(&server_error.message);
        let separator = if message.is_empty() { "" } else { ": " };
        let message = format!("{} answered {status}{separator}{message}", self.host);
        AttemptError { error: Error::new(code, message), retry, endpoint_fault }
    }

    /// The connection failed before or during the response.
    pub(crate) fn connection_error(&self, what: &str, error: reqwest::Error) -> AttemptError {
        let error = error.without_url();
        let mut cause = error.source();
        while let Some(deeper) = cause.and_then(|error| error.source()) {
            cause = Some(deeper);
        }
        let cause = self.secrets.clean(&cause.map_or_else(|| error.to_string(), ToString::to_string));
        AttemptError::fault(Code::ModelUnavailable, format!("{what} {}: {cause}", self.host))
    }

    /// The response ended before it was complete.
    pub(crate) fn truncated(&self) -> AttemptError {
        AttemptError::fault(Code::ModelUnavailable, format!("the answer of {} ended too early", self.host))
    }

    pub(crate) fn invalid_response(&self, what: &str) -> AttemptError {
        AttemptError::invalid_response(format!("{} answered with {what}", self.host))
    }
}

/// The code, when to retry, and whether the failure counts against the endpoint.
fn classify(status: StatusCode, server_error: &ServerError) -> (Code, Retry, bool) {
    if matches!(status.as_u16(), 400 | 413 | 422) && server_error.is_too_long(status) {
        return (Code::ContextTooLong, Retry::Never, false);
    }
    match status.as_u16() {
        401 | 403 => (Code::ModelKeyRefused, Retry::Never, false),
        // Waiting does not restore an exhausted quota.
        429 if server_error.is("insufficient_quota") => (Code::ModelRequestRefused, Retry::Never, false),
        429 => (Code::ModelOverloaded, Retry::Soon, false),
        529 => (Code::ModelOverloaded, Retry::Soon, true),
        408 | 409 => (Code::ModelUnavailable, Retry::Soon, false),
        501 | 505 => (Code::ModelUnavailable, Retry::Never, true),
        // Including codes that only gateways use.
        500.. => (Code::ModelUnavailable, Retry::Soon, true),
        _ => (Code::ModelRequestRefused, Retry::Never, false),
    }
}

impl ServerError {
    /// Parses `{"error": {"message", "type", "code"}}` and its many variants.
    fn of(value: &Value) -> Self {
        // Some servers wrap the error in a list.
        let value = value.get(0).unwrap_or(value);
        let error = value.get("error").filter(|error| !error.is_null()).unwrap_or(value);
        let text = |name: &str| error.get(name).and_then(Value::as_str);
        let message = error.as_str().or_else(|| text("message")).or_else(|| text("detail"));
        let message = message.or_else(|| value.get("message").and_then(Value::as_str)).unwrap_or_default();
        let kinds = ["type", "code", "status"].into_iter().filter_map(|name| match error.get(name)? {
            Value::String(text) => Some(text.to_lowercase()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        });
        Self { message: message.to_owned(), kinds: kinds.collect() }
    }

    fn of_text(body: &[u8]) -> Self {
        let text = String::from_utf8_lossy(body);
        let page = text.trim_start().starts_with('<');
        Self { message: if page { "a web page".to_owned() } else { text.into_owned() }, kinds: Vec::new() }
    }

    fn is(&self, kind: &str) -> bool {
        self.kinds.iter().any(|it| it == kind)
    }

    fn is_too_long(&self, status: StatusCode) -> bool {
        let message = self.message.to_lowercase();
        status == StatusCode::PAYLOAD_TOO_LARGE
            || TOO_LONG
                .iter()
                .any(|words| message.contains(words) || self.kinds.iter().any(|kind| kind.contains(words)))
    }

    /// The status that this error would have had, if the response had not begun.
    fn status(&self) -> StatusCode {
        let number =
            self.kinds.iter().find_map(|kind| kind.parse().ok().filter(|number| (400..600).contains(number)));
        let number = number.unwrap_or_else(|| {
            let has =
                |words: &[&str]| self.kinds.iter().any(|kind| words.iter().any(|word| kind.contains(word)));
            match () {
                () if has(&["overloaded"]) => 529,
                () if has(&["rate_limit", "quota"]) => 429,
                () if has(&["timeout"]) => 504,
                () if has(&["authentication", "api_key"]) => 401,
                () if has(&["permission"]) => 403,
                () if has(&["not_found"]) => 404,
                () if has(&["too_large"]) => 413,
                () if has(&["invalid_request", "context_length", "exceed_context"]) => 400,
                () => 500,
            }
        });
        StatusCode::from_u16(number).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn errors() -> ErrorMapper {
        ErrorMapper { host: "host".to_owned(), secrets: Secrets::default() }
    }

    fn status_error(status: u16, body: &Value) -> AttemptError {
        let status = StatusCode::from_u16(status).unwrap();
        errors().status_error(status, &HeaderMap::new(), body.to_string().as_bytes())
    }

    #[test]
    fn statuses_map_to_codes() {
        let nothing = json!({});
        let table = [
            (400, Code::ModelRequestRefused, Retry::Never, false),
            (401, Code::ModelKeyRefused, Retry::Never, false),
            (403, Code::ModelKeyRefused, Retry::Never, false),
            (404, Code::ModelRequestRefused, Retry::Never, false),
            (408, Code::ModelUnavailable, Retry::Soon, false),
            (409, Code::ModelUnavailable, Retry::Soon, false),
            (413, Code::ContextTooLong, Retry::Never, false),
            (418, Code::ModelRequestRefused, Retry::Never, false),
            (422, Code::ModelRequestRefused, Retry::Never, false),
            (429, Code::ModelOverloaded, Retry::Soon, false),
            (500, Code::ModelUnavailable, Retry::Soon, true),
            (501, Code::ModelUnavailable, Retry::Never, true),
            (502, Code::ModelUnavailable, Retry::Soon, true),
            (503, Code::ModelUnavailable, Retry::Soon, true),
            (504, Code::ModelUnavailable, Retry::Soon, true),
            (522, Code::ModelUnavailable, Retry::Soon, true),
            (529, Code::ModelOverloaded, Retry::Soon, true),
        ];
        for (status, code, retry, endpoint_fault) in table {
            let error = status_error(status, &nothing);
            assert_eq!(
                (error.error.code(), error.retry, error.endpoint_fault),
                (code, retry, endpoint_fault),
                "{status}"
            );
        }
    }

    #[test]
    fn context_too_long_is_recognised_for_every_provider() {
        let bodies = [
            json!({"error": {"code": "context_length_exceeded", "message": "too much"}}),
            json!({"error": {"message": "This model's maximum context length is 4096 tokens.", "code": 400}}),
            json!({"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long: 210000 tokens > 200000 maximum"}}),
            json!({"type": "error", "error": {"type": "invalid_request_error",
                "message": "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000"}}),
            json!({"error": {"type": "exceed_context_size_error", "message": "…"}}),
        ];
        for body in bodies {
            assert_eq!(status_error(400, &body).error.code(), Code::ContextTooLong, "{body}");
            assert_eq!(errors().stream_error(&body).error.code(), Code::ContextTooLong, "{body}");
        }
        assert_eq!(
            status_error(500, &json!({"error": "prompt is too long"})).error.code(),
            Code::ModelUnavailable
        );
    }

    #[test]
    fn stream_errors_are_classified_by_their_names() {
        let table = [
            (
                json!({"error": {"type": "overloaded_error", "message": "Overloaded"}}),
                Code::ModelOverloaded,
                Retry::Soon,
            ),
            (json!({"error": {"code": 429, "message": "slow down"}}), Code::ModelOverloaded, Retry::Soon),
            (
                json!({"error": {"code": "502", "message": "bad gateway"}}),
                Code::ModelUnavailable,
                Retry::Soon,
            ),
            (json!({"error": {"type": "authentication_error"}}), Code::ModelKeyRefused, Retry::Never),
            (json!({"error": {"type": "invalid_request_error"}}), Code::ModelRequestRefused, Retry::Never),
            (json!({"error": "what"}), Code::ModelUnavailable, Retry::Soon),
            (json!({"error": {"type": "insufficient_quota"}}), Code::ModelRequestRefused, Retry::Never),
        ];
        for (body, code, retry) in table {
            let error = errors().stream_error(&body);
            assert_eq!((error.error.code(), error.retry), (code, retry), "{body}");
        }
    }

    #[test]
    fn error_messages_are_found_in_all_known_fields() {
        for body in [
            json!({"error": {"message": "no"}}),
            json!({"error": "no"}),
            json!({"message": "no"}),
            json!({"detail": "no"}),
            json!([{"error": {"message": "no"}}]),
            json!({"error": null, "message": "no"}),
        ] {
            assert_eq!(
                status_error(400, &body).error.message(),
                "host answered 400 Bad Request: no",
                "{body}"
            );
        }
        assert_eq!(status_error(400, &json!({})).error.message(), "host answered 400 Bad Request");
    }
}
