//! The span of a request, in the trace that its caller began or in a new one.

use std::{future::Future, sync::Arc};

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use remuda_domain::trace::TraceContext;
use remuda_telemetry::{TRACE_TARGET, set_parent, spans};
use tonic::{
    Code,
    codegen::http::{HeaderMap, HeaderValue},
};
use tracing::{Instrument as _, Span, field::Empty};

use crate::{context::note_trace, requests::Methods};

/// The caller's trace, if it looks like one. A trace is never worth a failed request.
pub(crate) fn caller(headers: &HeaderMap) -> Option<TraceContext> {
    headers.get("traceparent")?.to_str().ok()?.parse().ok()
}

/// What a run that this request submits belongs to: the request itself where traces are collected, else what its caller said.
#[must_use]
pub fn cause(headers: &HeaderMap) -> Option<TraceContext> {
    remuda_telemetry::current().or_else(|| caller(headers))
}

/// Does the work of a request within a span of its own, where traces are collected. `record` adds what the answer says.
pub async fn within_span<T>(
    protocol: &'static str,
    name: &str,
    headers: &HeaderMap,
    work: impl Future<Output = T>,
    record: impl FnOnce(&Span, &T),
) -> T {
    if !spans::are_collected() {
        return work.await;
    }
    let span = tracing::info_span!(
        target: TRACE_TARGET,
        "request",
        otel.name = name,
        otel.kind = "server",
        otel.status_code = Empty,
        rpc.system = Empty,
        rpc.method = Empty,
        rpc.grpc.status_code = Empty,
        http.route = Empty,
        http.response.status_code = Empty,
    );
    match protocol {
        "grpc" => span.record("rpc.system", protocol).record("rpc.method", name),
        _ => span.record("http.route", name),
    };
    match caller(headers) {
        Some(parent) => set_parent(&span, parent),
        // Lines of the request know the trace of its caller already.
        None => {
            span.in_scope(remuda_telemetry::current).inspect(|own| note_trace(*own));
        }
    }
    let answer = work.instrument(span.clone()).await;
    record(&span, &answer);
    answer
}

/// The layer of gRPC services.
pub(crate) async fn traced(State(methods): State<Arc<Methods>>, request: Request, next: Next) -> Response {
    if !spans::are_collected() {
        return next.run(request).await;
    }
    let (name, headers) = (methods.full_name(request.uri().path()), request.headers().clone());
    within_span("grpc", name, &headers, next.run(request), |span, response| {
        // An answer that goes on has its status in the end; one that has failed has it here.
        let status = response.headers().get("grpc-status").map(HeaderValue::as_bytes);
        let code = status.map_or(Code::Ok, Code::from_bytes);
        span.record("rpc.grpc.status_code", code as i32);
        if is_fault(code) {
            span.record("otel.status_code", "ERROR");
        }
    })
    .await
}

/// Whether the server is to blame, as OpenTelemetry has it: a refusal is an answer.
fn is_fault(code: Code) -> bool {
    use Code::{DataLoss, DeadlineExceeded, Internal, Unavailable, Unimplemented, Unknown};
    matches!(code, Unknown | DeadlineExceeded | Unimplemented | Internal | Unavailable | DataLoss)
}
