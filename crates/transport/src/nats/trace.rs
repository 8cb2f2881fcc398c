//! The trace that a message belongs to, in its header.

use async_nats::HeaderMap;
use remuda_domain::trace::TraceContext;

const TRACEPARENT: &str = "traceparent";

pub(super) fn headers(origin: TraceContext) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(TRACEPARENT, origin.to_string().as_str());
    headers
}

/// Whatever is no `traceparent` is ignored: a trace is never worth a lost message.
pub(super) fn context(headers: &HeaderMap) -> Option<TraceContext> {
    headers.get(TRACEPARENT)?.as_str().parse().ok()
}
