//! The current trace context of this process.

use opentelemetry::{Context, trace::TraceContextExt as _};
use remuda_domain::trace::{self, TraceContext};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use crate::spans::to_otel;

/// The current span, to be passed to the process that continues its trace. `None` outside of spans and without traces.
#[must_use]
pub fn current() -> Option<TraceContext> {
    let context = Span::current().context();
    let span = context.span();
    let context = span.span_context();
    Some(TraceContext {
        trace: trace::TraceId::new(u128::from_be_bytes(context.trace_id().to_bytes()))?,
        span: trace::SpanId::new(u64::from_be_bytes(context.span_id().to_bytes()))?,
        sampled: context.is_sampled(),
    })
}

/// Makes the span a child of a span of another process. Call it before the span is entered.
pub fn set_parent(span: &Span, parent: TraceContext) {
    let parent = Context::new().with_remote_span_context(to_otel(parent, true));
    if let Err(error) = span.set_parent(parent) {
        tracing::trace!(%error, "setting the parent span failed");
    }
}
