//! The trace of a run.

use std::collections::BTreeMap;

use remuda_proto::v1;
use serde::Serialize;
use utoipa::ToSchema;

use crate::json_value::{text, time};

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Trace {
    /// 32 hexadecimal digits.
    pub trace_id: String,
    /// Whether the caller sampled the trace, by the flag of its `traceparent`.
    pub sampled: bool,
    /// Ordered by start, each after its parent; at most 2,000.
    pub spans: Vec<TraceSpan>,
    /// True if there are more spans, or more events than were read.
    pub truncated: bool,
    /// The server's time: the end of open spans.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub now: Option<String>,
}

/// One span of a trace.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct TraceSpan {
    /// 16 hexadecimal digits.
    pub span_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_span_id: Option<String>,
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub started_at: Option<String>,
    /// Missing while the span is open.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub ended_at: Option<String>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Attribute names follow OpenTelemetry.
    pub attributes: BTreeMap<String, String>,
    pub run_id: String,
    pub session_id: String,
}

impl From<v1::GetRunTraceResponse> for Trace {
    fn from(trace: v1::GetRunTraceResponse) -> Self {
        Self {
            trace_id: trace.trace_id,
            sampled: trace.sampled,
            spans: trace.spans.into_iter().map(Into::into).collect(),
            truncated: trace.truncated,
            now: time(trace.now),
        }
    }
}

impl From<v1::TraceSpan> for TraceSpan {
    fn from(span: v1::TraceSpan) -> Self {
        Self {
            span_id: span.span_id,
            parent_span_id: text(span.parent_span_id),
            name: span.name,
            started_at: time(span.started_at),
            ended_at: time(span.ended_at),
            failure: text(span.failure),
            attributes: span.attributes.into_iter().collect(),
            run_id: span.run_id,
            session_id: span.session_id,
        }
    }
}
