//! Routes gRPC calls to their services, with metrics and traces.

use std::{convert::Infallible, future::Future, sync::Arc, time::Instant};

use axum::{
    BoxError, Router,
    body::{Bytes, HttpBody},
    response::Response,
};
use remuda_domain::error::Result;
use remuda_proto::status::from_status;
use remuda_telemetry::spans;
use tonic::{
    Code, Status,
    codegen::http::{
        HeaderMap, Request,
        header::{HeaderName, HeaderValue},
        request::Parts,
    },
};
use tower::Service as _;
use tracing::Span;

use crate::{
    call::{Gate, log_and_convert},
    request_context::caller_trace,
    request_metrics::Methods,
    span::{grpc_span, within_span},
};

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// The gRPC services of a server. Cheap to clone.
///
/// Not built from tower layers: each layer would box the call, copy the services and rebuild the response, which together
/// costs as much as a small call.
#[derive(Clone, Debug)]
pub struct GrpcRouter {
    services: Router,
    methods: Arc<Methods>,
    gate: Gate,
}

impl GrpcRouter {
    pub(crate) fn new(services: Router, methods: Methods, gate: Gate) -> Self {
        Self { services, methods: Arc::new(methods), gate }
    }

    /// The checks and limits of the server.
    #[must_use]
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Handles a call. All work happens when the returned future is polled, so within the span that instruments it.
    pub fn call<B>(
        &self,
        request: Request<B>,
    ) -> impl Future<Output = Result<Response, Infallible>> + Send + use<B>
    where
        B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let begun = Instant::now();
        let (methods, method) = (Arc::clone(&self.methods), self.methods.find(request.uri().path()));
        let caller = caller_trace(&request);
        let (mut services, gate) = (self.services.clone(), self.gate.clone());
        async move {
            let work = async {
                let (head, body) = request.into_parts();
                if let Err(error) = check(&gate, &head).await {
                    return log_and_convert(&error).into_http();
                }
                let Ok(mut response) = services.call(Request::from_parts(head, gate.meter(body))).await;
                fix_decode_errors(response.headers_mut());
                response
            };
            let response = match spans::are_collected() {
                true => within_span(grpc_span(method.full_name()), caller, work, record_status).await,
                false => work.await,
            };
            methods.record(&method, outcome(response.headers()), begun.elapsed());
            Ok(response)
        }
    }
}

/// Checks the head of a call. The library reads the body before it calls a service, so the caller must be known here.
async fn check(gate: &Gate, head: &Parts) -> Result<()> {
    gate.check_browser(&head.method, &head.uri, &head.headers)?;
    if needs_caller(head.uri.path()) {
        gate.identify(&head.headers).await?;
    }
    Ok(())
}

/// Health, reflection and the description of the server are for everyone.
fn needs_caller(path: &str) -> bool {
    path.starts_with("/remuda.v1.") && !path.starts_with("/remuda.v1.MetaService/")
}

/// Records the status in a call's span. A failed call has its status in the headers; a stream that goes on gets it at its
/// end.
fn record_status(span: &Span, response: &Response) {
    let code = status(response.headers()).map_or(Code::Ok, Code::from_bytes);
    span.record("rpc.grpc.status_code", code as i32);
    if is_server_error(code) {
        span.record("otel.status_code", "ERROR");
    }
}

fn status(headers: &HeaderMap) -> Option<&[u8]> {
    headers.get(STATUS).map(HeaderValue::as_bytes)
}

/// Replaces `internal` with `invalid_argument` for bytes that are not a valid message, such as text that is not UTF-8.
/// The library reports these as server errors.
fn fix_decode_errors(headers: &mut HeaderMap) {
    if status(headers) != Some(b"13") {
        return;
    }
    let message = headers.get(MESSAGE).map(HeaderValue::as_bytes).unwrap_or_default();
    if message.starts_with(b"failed%20to%20decode%20Protobuf") {
        headers.insert(STATUS, HeaderValue::from(Code::InvalidArgument as u16));
    }
}

/// The outcome of a call: the code of its error, or `ok`. Errors are in the response headers: streams report later errors
/// as stream messages.
fn outcome(headers: &HeaderMap) -> &'static str {
    let error = Status::from_header_map(headers).filter(|it| it.code() != Code::Ok);
    error.map_or("ok", |status| from_status(&status).code().as_str())
}

/// Whether a status is a server error by OpenTelemetry's conventions. Refusals are not.
fn is_server_error(code: Code) -> bool {
    use Code::{DataLoss, DeadlineExceeded, Internal, Unavailable, Unimplemented, Unknown};
    matches!(code, Unknown | DeadlineExceeded | Unimplemented | Internal | Unavailable | DataLoss)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(status: &'static str, message: &'static str) -> HeaderMap {
        let pairs = [(STATUS, status), (MESSAGE, message)];
        pairs.into_iter().map(|(name, value)| (name, HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn undecodable_messages_are_invalid_arguments() {
        let undecodable = "failed%20to%20decode%20Protobuf%20message:%20invalid%20string";
        for (code, message, expected) in
            [("13", undecodable, "3"), ("13", "lost", "13"), ("14", undecodable, "14")]
        {
            let mut headers = headers(code, message);
            fix_decode_errors(&mut headers);
            assert_eq!(status(&headers), Some(expected.as_bytes()), "{code} {message}");
        }
    }

    #[test]
    fn only_calls_of_the_api_need_a_caller() {
        for path in
            ["/remuda.v1.RunService/SubmitRun", "/remuda.v1.StreamService/Subscribe", "/remuda.v1.X/Y"]
        {
            assert!(needs_caller(path), "{path}");
        }
        for path in ["/remuda.v1.MetaService/GetServerInfo", "/grpc.health.v1.Health/Check", "/x", ""] {
            assert!(!needs_caller(path), "{path}");
        }
    }

    #[test]
    fn response_without_an_error_is_ok() {
        assert_eq!(outcome(&HeaderMap::new()), "ok");
        assert_eq!(outcome(&headers("0", "")), "ok");
        assert_eq!(
            outcome(&headers("5", "no%20such%20run")),
            from_status(&Status::not_found("")).code().as_str()
        );
    }
}
