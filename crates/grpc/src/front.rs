//! The one way in for gRPC calls: measured, traced, and answered.

use std::{convert::Infallible, future::Future, pin::Pin, sync::Arc, time::Instant};

use axum::{
    BoxError, Router,
    body::{Bytes, HttpBody},
    response::Response,
};
use remuda_proto::status::from_status;
use remuda_telemetry::spans;
use tonic::{
    Code, Status,
    codegen::http::{
        HeaderMap, Request,
        header::{HeaderName, HeaderValue},
    },
};
use tower::Service as _;
use tracing::Span;

use crate::{
    context::caller_of,
    requests::Methods,
    span::{of_call, within_span},
};

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// The services of a server, as something to serve. Cheap to clone.
///
/// Not layers around a router: each of those would box the call, copy the services and make the answer anew, which together costs as much
/// as a small call itself.
#[derive(Clone, Debug)]
pub struct Front {
    services: Router,
    methods: Arc<Methods>,
}

impl Front {
    pub(crate) fn new(services: Router, methods: Methods) -> Self {
        Self { services, methods: Arc::new(methods) }
    }

    /// Answers a call. What it does is done when the answer is polled, so within the span that the answer is put into.
    pub fn answer<B>(
        &self,
        request: Request<B>,
    ) -> impl Future<Output = Result<Response, Infallible>> + Send + use<B>
    where
        B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let begun = Instant::now();
        let (methods, method) = (Arc::clone(&self.methods), self.methods.find(request.uri().path()));
        let caller = caller_of(&request);
        let mut work = self.services.clone().call(request);
        async move {
            let work = async {
                let Ok(mut response) = Pin::new(&mut work).await;
                blame_the_sender(response.headers_mut());
                response
            };
            let response = match spans::are_collected() {
                true => within_span(of_call(method.full_name()), caller, work, tell).await,
                false => work.await,
            };
            methods.answered(&method, outcome(response.headers()), begun.elapsed());
            Ok(response)
        }
    }
}

/// Adds to a call's span what its answer says. One that goes on has its status in the end; one that has failed has it here.
fn tell(span: &Span, response: &Response) {
    let code = status(response.headers()).map_or(Code::Ok, Code::from_bytes);
    span.record("rpc.grpc.status_code", code as i32);
    if is_fault(code) {
        span.record("otel.status_code", "ERROR");
    }
}

fn status(headers: &HeaderMap) -> Option<&[u8]> {
    headers.get(STATUS).map(HeaderValue::as_bytes)
}

/// Says `invalid_argument` of bytes that are no message, such as text that is not UTF-8. The library would say
/// `internal`, as if the fault were ours.
fn blame_the_sender(headers: &mut HeaderMap) {
    if status(headers) != Some(b"13") {
        return;
    }
    let message = headers.get(MESSAGE).map(HeaderValue::as_bytes).unwrap_or_default();
    if message.starts_with(b"failed%20to%20decode%20Protobuf") {
        headers.insert(STATUS, HeaderValue::from(Code::InvalidArgument as u16));
    }
}

/// How a call ended: the code of its error, or `ok`. An error is in the head of its answer, as no answer of ours fails after its first
/// part with anything that could not be told by the stream itself.
fn outcome(headers: &HeaderMap) -> &'static str {
    let error = Status::from_header_map(headers).filter(|it| it.code() != Code::Ok);
    error.map_or("ok", |status| from_status(&status).code().as_str())
}

/// Whether the server is to blame, as OpenTelemetry has it: a refusal is an answer.
fn is_fault(code: Code) -> bool {
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
    fn bytes_that_are_no_message_are_the_senders_fault() {
        let undecodable = "failed%20to%20decode%20Protobuf%20message:%20invalid%20string";
        for (code, message, blamed) in
            [("13", undecodable, "3"), ("13", "lost", "13"), ("14", undecodable, "14")]
        {
            let mut headers = headers(code, message);
            blame_the_sender(&mut headers);
            assert_eq!(status(&headers), Some(blamed.as_bytes()), "{code} {message}");
        }
    }

    #[test]
    fn an_answer_without_an_error_is_ok() {
        assert_eq!(outcome(&HeaderMap::new()), "ok");
        assert_eq!(outcome(&headers("0", "")), "ok");
        assert_eq!(
            outcome(&headers("5", "no%20such%20run")),
            from_status(&Status::not_found("")).code().as_str()
        );
    }
}
