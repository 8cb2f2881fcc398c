//! The span of a request, in the trace that its caller began or in a new one.

use std::{future::Future, pin::pin};

use remuda_domain::trace::TraceContext;
use remuda_telemetry::{TRACE_TARGET, set_parent};
use tonic::codegen::http::HeaderMap;
use tracing::{Instrument as _, Span, field::Empty};

use crate::context::note_trace;

/// The caller's trace, if it looks like one. A trace is never worth a failed request.
pub(crate) fn caller(headers: &HeaderMap) -> Option<TraceContext> {
    headers.get("traceparent")?.to_str().ok()?.parse().ok()
}

/// What a run that this request submits belongs to: the request itself where traces are collected, else what its caller said.
#[must_use]
pub fn cause(headers: &HeaderMap) -> Option<TraceContext> {
    remuda_telemetry::current().or_else(|| caller(headers))
}

/// The span of a gRPC call, if traces are collected. Nobody sees it otherwise.
pub(crate) fn of_call(method: &str) -> Span {
    tracing::info_span!(
        target: TRACE_TARGET,
        "request",
        otel.name = method,
        otel.kind = "server",
        otel.status_code = Empty,
        rpc.system = "grpc",
        rpc.method = method,
        rpc.grpc.status_code = Empty,
    )
}

/// The same of an HTTP request.
#[must_use]
pub fn of_route(route: &str) -> Span {
    tracing::info_span!(
        target: TRACE_TARGET,
        "request",
        otel.name = route,
        otel.kind = "server",
        otel.status_code = Empty,
        http.route = route,
        http.response.status_code = Empty,
    )
}

/// Does the work of a request within a span of its own: of the caller's trace, or of a new one. `record` adds what the answer says.
///
/// To be called where traces are collected, within the span of the log.
pub async fn within_span<T>(
    span: Span,
    caller: Option<TraceContext>,
    work: impl Future<Output = T>,
    record: impl FnOnce(&Span, &T),
) -> T {
    match caller {
        Some(parent) => set_parent(&span, parent),
        // Lines of the request know the trace of its caller already.
        None => {
            span.in_scope(remuda_telemetry::current).inspect(|own| note_trace(*own));
        }
    }
    let mut work = pin!(work.instrument(span));
    let answer = work.as_mut().await;
    record(work.span(), &answer);
    answer
}
