//! The trace context of a message, in its headers.

use async_nats::HeaderMap;
use remuda_domain::trace::TraceContext;

const TRACEPARENT: &str = "traceparent";

pub(super) fn headers(origin: TraceContext) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(TRACEPARENT, origin.to_string().as_str());
    headers
}

/// An invalid `traceparent` is ignored: a message is worth more than its trace.
pub(super) fn context(headers: &HeaderMap) -> Option<TraceContext> {
    headers.get(TRACEPARENT)?.as_str().parse().ok()
}
