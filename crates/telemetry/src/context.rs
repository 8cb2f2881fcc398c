//! Carrying a trace from process to process.

use std::collections::HashMap;

use opentelemetry::{propagation::TextMapPropagator, trace::TraceContextExt};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

const TRACEPARENT: &str = "traceparent";

/// The current span as a W3C `traceparent`, to be handed to whoever continues the trace. `None` outside of
/// spans and when no traces are collected.
#[must_use]
pub fn inject_current() -> Option<String> {
    let context = Span::current().context();
    if !context.span().span_context().is_valid() {
        return None;
    }
    let mut carrier = HashMap::new();
    TraceContextPropagator::new().inject_context(&context, &mut carrier);
    carrier.remove(TRACEPARENT)
}

/// Makes the span a child of the given one. Call it before the span is entered. Whatever is not a valid
/// `traceparent` is ignored: a trace is never worth a failed request.
pub fn set_parent(span: &Span, traceparent: &str) {
    let carrier = HashMap::from([(TRACEPARENT.to_owned(), traceparent.to_owned())]);
    let context = TraceContextPropagator::new().extract(&carrier);
    if !context.span().span_context().is_valid() {
        return;
    }
    if let Err(error) = span.set_parent(context) {
        tracing::trace!(%error, "the span keeps its own trace");
    }
}
