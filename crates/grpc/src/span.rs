//! The exported span of a request, in its caller's trace or in a new one.

use std::{future::Future, pin::pin};

use remuda_domain::trace::TraceContext;
use remuda_telemetry::{TRACE_TARGET, set_parent};
use tonic::codegen::http::HeaderMap;
use tracing::{Instrument as _, Span, field::Empty};

use crate::request_context::record_trace;

/// The caller's trace context. An invalid header is ignored: it must not fail the request.
pub(crate) fn caller(headers: &HeaderMap) -> Option<TraceContext> {
    headers.get("traceparent")?.to_str().ok()?.parse().ok()
}

/// The parent span for a run that this request submits: the request itself if traces are exported, else the caller's
/// span.
#[must_use]
pub fn cause(headers: &HeaderMap) -> Option<TraceContext> {
    remuda_telemetry::current().or_else(|| caller(headers))
}

/// The span of a gRPC call.
pub(crate) fn grpc_span(method: &str) -> Span {
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

/// The span of an HTTP request.
#[must_use]
pub fn http_span(route: &str) -> Span {
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

/// Runs the work of a request within a span, in the caller's trace or in a new one. `record` adds fields from the
/// response.
///
/// Call it only if traces are exported, and within the log span.
pub async fn within_span<T>(
    span: Span,
    caller: Option<TraceContext>,
    work: impl Future<Output = T>,
    record: impl FnOnce(&Span, &T),
) -> T {
    match caller {
        Some(parent) => set_parent(&span, parent),
        // Otherwise the log span already has the caller's trace.
        None => {
            span.in_scope(remuda_telemetry::current).inspect(|own| record_trace(*own));
        }
    }
    let mut work = pin!(work.instrument(span));
    let answer = work.as_mut().await;
    record(work.span(), &answer);
    answer
}
