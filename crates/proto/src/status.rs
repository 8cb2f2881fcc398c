//! Converts errors to gRPC statuses with `ErrorInfo`, `BadRequest` and `RetryInfo` details, and back.

use std::time::Duration;

use remuda_domain::{Code, Error};
use tonic::Status;
use tonic_types::{ErrorDetails, StatusExt as _};

/// The `domain` of `ErrorInfo` details.
pub const ERROR_DOMAIN: &str = "remuda";

/// Converts an error to a status. `ErrorInfo.reason` is the error's code, so that clients can match on a stable name. The
/// causes of internal errors are not included.
#[must_use]
pub fn to_status(error: &Error) -> Status {
    let mut details = ErrorDetails::new();
    details.set_error_info(error.code().as_str(), ERROR_DOMAIN, []);
    if let Some(field) = error.field() {
        details.add_bad_request_violation(field, error.message());
    }
    if let Some(delay) = error.retry_delay() {
        details.set_retry_info(Some(delay));
    }
    let code = tonic::Code::from_i32(error.code().grpc() as i32);
    Status::with_error_details(code, error.to_string(), details)
}

/// Converts a status that a client received back to an error.
#[must_use]
pub fn from_status(status: &Status) -> Error {
    let details = status.get_error_details();
    let named = details
        .error_info()
        .filter(|info| info.domain == ERROR_DOMAIN)
        .and_then(|info| Code::parse(&info.reason));
    let code = named.unwrap_or_else(|| code_of_foreign_status(status.code()));
    let violation = details.bad_request().and_then(|bad| bad.field_violations.first());
    let mut error = match violation {
        Some(violation) => Error::new(code, violation.description.clone()).at(violation.field.clone()),
        None => Error::new(code, status.message()),
    };
    if let Some(delay) = details.retry_info().and_then(|info| info.retry_delay) {
        error = error.retry_after(delay.min(Duration::from_secs(3600)));
    }
    error
}

/// The code for a status that the gRPC library generated, which has no details.
fn code_of_foreign_status(code: tonic::Code) -> Code {
    match code {
        tonic::Code::InvalidArgument => Code::InvalidArgument,
        tonic::Code::OutOfRange | tonic::Code::ResourceExhausted => Code::TooLarge,
        tonic::Code::DeadlineExceeded | tonic::Code::Cancelled => Code::DeadlineExceeded,
        tonic::Code::Unauthenticated => Code::Unauthenticated,
        tonic::Code::PermissionDenied => Code::PermissionDenied,
        tonic::Code::Unimplemented => Code::Unimplemented,
        tonic::Code::Unavailable | tonic::Code::Unknown => Code::Unavailable,
        _ => Code::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_survives_a_round_trip() {
        for code in Code::ALL {
            let error = Error::new(*code, "message").at("field").retry_after(Duration::from_secs(3));
            let back = from_status(&to_status(&error));
            assert_eq!(back.code(), *code);
            assert_eq!(back.field(), Some("field"));
            assert_eq!(back.message(), "message");
            assert_eq!(back.retry_delay(), Some(Duration::from_secs(3)));
        }
    }

    #[test]
    fn causes_are_not_sent_to_clients() {
        let error = Error::internal("the store failed").with_source("password=hunter2");
        let status = to_status(&error);
        assert!(!format!("{status:?}").contains("hunter2"));
    }
}
