//! Emits spans after they have ended.
//!
//! A `tracing` span lives in one process and is lost with it. Spans of runs are built from stored data instead: their ids
//! are derived from the ids of runs and steps, and their times come from the store. So any process can emit a span, and
//! emitting it twice does no harm.

use std::{borrow::Cow, sync::OnceLock, time::SystemTime};

use opentelemetry::{
    Array, InstrumentationScope, KeyValue, StringValue, Value,
    trace::{Link, SpanContext, SpanId, Status, TraceFlags, TraceId, TraceState},
};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use remuda_domain::{
    Timestamp,
    trace::{self, TraceContext},
};

pub use opentelemetry::trace::SpanKind;

use crate::{logs::masked, span_queue::SpanQueue};

/// Bytes kept of a text in a span, since names and reasons may come from outside.
const MAX_TEXT: usize = 1024;

/// A finished span of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    pub context: TraceContext,
    pub parent: Option<trace::SpanId>,
    pub name: Cow<'static, str>,
    pub kind: SpanKind,
    pub start: Timestamp,
    pub end: Timestamp,
    pub attributes: Vec<KeyValue>,
    /// Why it failed, if it did.
    pub failure: Option<String>,
    pub links: Vec<TraceContext>,
}

impl Span {
    /// A child of another span.
    #[must_use]
    pub fn below(
        parent: TraceContext,
        id: trace::SpanId,
        name: impl Into<Cow<'static, str>>,
        (start, end): (Timestamp, Timestamp),
    ) -> Self {
        Self {
            context: parent.with_span(id),
            parent: Some(parent.span),
            name: name.into(),
            kind: SpanKind::Internal,
            start,
            end,
            attributes: Vec::new(),
            failure: None,
            links: Vec::new(),
        }
    }

    #[must_use]
    pub fn kind(self, kind: SpanKind) -> Self {
        Self { kind, ..self }
    }

    #[must_use]
    pub fn with(mut self, attributes: impl IntoIterator<Item = KeyValue>) -> Self {
        self.attributes.extend(attributes);
        self
    }

    #[must_use]
    pub fn failed(self, failure: Option<String>) -> Self {
        Self { failure, ..self }
    }

    #[must_use]
    pub fn linked(mut self, to: Option<TraceContext>) -> Self {
        self.links.extend(to);
        self
    }
}

static QUEUE: OnceLock<SpanQueue> = OnceLock::new();

/// Connects [`emit`] to the queue.
pub(crate) fn connect(queue: SpanQueue) {
    // A second call would need a second subscriber, which is rejected as well.
    drop(QUEUE.set(queue));
}

/// Whether traces are collected, to skip lookups that only serve spans.
#[must_use]
pub fn are_collected() -> bool {
    QUEUE.get().is_some()
}

/// Whether an emitted span would be exported: traces are collected, and exports are not paused.
#[must_use]
pub fn are_exported() -> bool {
    QUEUE.get().is_some_and(|queue| !queue.is_paused())
}

/// Queues a span for export, if its trace is sampled. Never blocks.
pub fn emit(span: Span) {
    if let Some(queue) = QUEUE.get().filter(|_| span.context.sampled) {
        queue.push(to_data(span));
    }
}

fn to_data(span: Span) -> SpanData {
    let Span { context, parent, name, kind, start, end, attributes, failure, links } = span;
    let mut span_links = SpanLinks::default();
    span_links.links = links.into_iter().map(|to| Link::new(to_otel(to, true), Vec::new(), 0)).collect();
    SpanData {
        span_context: to_otel(context, false),
        parent_span_id: parent
            .map_or(SpanId::INVALID, |parent| SpanId::from_bytes(parent.bits().to_be_bytes())),
        // The parent may be in another process; nothing depends on this flag.
        parent_span_is_remote: false,
        span_kind: kind,
        name,
        start_time: SystemTime::from(start),
        // Clocks of different machines may differ, but a span must not end before its start.
        end_time: SystemTime::from(end.max(start)),
        attributes,
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: span_links,
        status: failure.map_or(Status::Unset, Status::error),
        instrumentation_scope: scope(),
    }
}

/// Truncates the texts of a span, and masks secrets in its error.
pub(crate) fn sanitized(mut span: SpanData) -> SpanData {
    if span.name.len() > MAX_TEXT {
        span.name = start(&span.name).to_owned().into();
    }
    for attribute in &mut span.attributes {
        match &mut attribute.value {
            Value::String(text) => shorten(text),
            Value::Array(Array::String(texts)) => texts.iter_mut().for_each(shorten),
            _ => {}
        }
    }
    if let Status::Error { description } = &mut span.status {
        *description = masked(description, MAX_TEXT).into();
    }
    span
}

fn shorten(text: &mut StringValue) {
    if text.as_str().len() > MAX_TEXT {
        *text = start(text.as_str()).to_owned().into();
    }
}

fn start(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_TEXT)]
}

fn scope() -> InstrumentationScope {
    static SCOPE: OnceLock<InstrumentationScope> = OnceLock::new();
    SCOPE.get_or_init(|| InstrumentationScope::builder("remuda").build()).clone()
}

pub(crate) fn to_otel(context: TraceContext, is_remote: bool) -> SpanContext {
    let flags = if context.sampled { TraceFlags::SAMPLED } else { TraceFlags::default() };
    SpanContext::new(
        TraceId::from_bytes(context.trace.bits().to_be_bytes()),
        SpanId::from_bytes(context.span.bits().to_be_bytes()),
        flags,
        is_remote,
        TraceState::default(),
    )
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    #[test]
    fn span_is_exported_with_all_its_fields() {
        let cause: TraceContext = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".parse().unwrap();
        let (start, id) = (Timestamp::UNIX_EPOCH, trace::SpanId::new(0x17).unwrap());
        let other = cause.with_span(trace::SpanId::new(0x18).unwrap());
        let span = Span::below(cause, id, "queue", (start, start + TimeDelta::seconds(2)))
            .kind(SpanKind::Consumer)
            .with([KeyValue::new("remuda.run.attempt", 2)])
            .failed(Some("lost".to_owned()))
            .linked(Some(other));
        let data = to_data(span.clone());
        assert_eq!(data.span_context.trace_id().to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(data.span_context.span_id().to_string(), "0000000000000017");
        assert_eq!(data.parent_span_id.to_string(), "b7ad6b7169203331");
        assert_eq!(data.end_time.duration_since(data.start_time).unwrap().as_secs(), 2);
        assert_eq!(data.links.links[0].span_context.span_id().to_string(), "0000000000000018");
        assert!(data.span_context.is_sampled());
        assert_eq!(data.status, Status::error("lost"));
        let backwards = to_data(Span { end: start - TimeDelta::seconds(1), ..span });
        assert_eq!(backwards.end_time, backwards.start_time);
    }

    #[test]
    fn texts_are_truncated_and_secrets_masked() {
        let cause: TraceContext = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".parse().unwrap();
        let (at, id) = (Timestamp::UNIX_EPOCH, trace::SpanId::new(0x17).unwrap());
        let long = format!("x{}", "é".repeat(MAX_TEXT));
        let texts = Value::Array(Array::String(vec![long.clone().into()]));
        let span = Span::below(cause, id, long.clone(), (at, at))
            .with([KeyValue::new("model", long.clone()), KeyValue::new("reasons", texts)])
            .failed(Some(format!("sk-0123456789abcdef is wrong {long}")));
        let SpanData { name, attributes, status, .. } = sanitized(to_data(span));
        let kept = start(&long);
        assert_eq!((name.as_ref(), kept.len()), (kept, MAX_TEXT - 1));
        assert_eq!(attributes[0], KeyValue::new("model", kept.to_owned()));
        let reasons = Value::Array(Array::String(vec![kept.to_owned().into()]));
        assert_eq!(attributes[1], KeyValue::new("reasons", reasons));
        let Status::Error { description } = status else { panic!("{status:?}") };
        assert!(description.starts_with("sk-*** is wrong x") && description.len() < MAX_TEXT + 50);
    }
}
