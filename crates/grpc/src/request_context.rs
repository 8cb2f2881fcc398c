//! The log span of a request, with its id, tenant and trace.

use axum::http::{Extensions, Request, header::HeaderName};
use remuda_domain::{identity::Principal, trace::TraceContext};
use tracing::{
    Span, error_span,
    field::{Empty, display},
};
use uuid::Uuid;

use crate::span::caller;

pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const MAX_ID_CHARS: usize = 128;
/// Paths are cut to this length: they contain names chosen by callers.
const MAX_PATH_CHARS: usize = 256;

/// The id by which a request is found in the log.
#[derive(Clone, Debug)]
pub struct RequestId(pub String);

/// The caller's own id if it is safe to log, else a new one.
fn request_id<B>(request: &Request<B>) -> RequestId {
    let given = request.headers().get(REQUEST_ID).and_then(|value| value.to_str().ok());
    let is_safe = |id: &&str| {
        let fits = (1..=MAX_ID_CHARS).contains(&id.len());
        fits && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte))
    };
    let new = || ["req_", Uuid::now_v7().simple().encode_lower(&mut Uuid::encode_buffer())].concat();
    RequestId(given.filter(is_safe).map_or_else(new, str::to_owned))
}

/// Returns the request's id, and assigns one first if it has none.
pub fn identify<B>(request: &mut Request<B>) -> RequestId {
    if let Some(id) = request.extensions().get::<RequestId>() {
        return id.clone();
    }
    let id = request_id(request);
    request.extensions_mut().insert(id.clone());
    id
}

/// The log span around all work for a request. It is not exported. Its level is `error`, so that no log filter removes it
/// and its ids.
pub fn request_span<B>(request: &mut Request<B>) -> Span {
    let RequestId(request_id) = identify(request);
    let path = request.uri().path();
    let path = &path[..path.floor_char_boundary(MAX_PATH_CHARS)];
    let caller = caller(request.headers());
    let span = error_span!(
        "request",
        request_id,
        method = %format_args!("{} {path}", request.method()),
        trace_id = caller.map(|context| display(context.trace)),
        tenant = Empty
    );
    request.extensions_mut().insert(RequestSpan { span: span.clone(), caller });
    span
}

/// Request extension with the log span, for fields that are recorded later, and the caller's trace.
#[derive(Clone)]
struct RequestSpan {
    span: Span,
    caller: Option<TraceContext>,
}

/// The trace context that the caller sent.
pub fn caller_trace<B>(request: &Request<B>) -> Option<TraceContext> {
    let span = request.extensions().get::<RequestSpan>();
    span.map_or_else(|| caller(request.headers()), |span| span.caller)
}

/// Records the caller's tenant in the log span.
pub fn record_caller(request: &Extensions, caller: &Principal) {
    if let Some(RequestSpan { span, .. }) = request.get::<RequestSpan>() {
        span.record("tenant", display(caller.tenant));
    }
}

/// Records the trace that the current request has started in the log span. Call it outside of the trace's own spans.
pub(crate) fn record_trace(trace: TraceContext) {
    Span::current().record("trace_id", display(trace.trace));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_ids_that_are_safe_to_log_are_kept() {
        let id = |given: &str| {
            let mut request = Request::builder().header(REQUEST_ID, given).body(()).unwrap();
            let first = identify(&mut request);
            assert_eq!(identify(&mut request).0, first.0);
            first.0
        };
        assert_eq!(id("a-B_1.2:3"), "a-B_1.2:3");
        for bad in ["", "a b", "\"", "é", &"x".repeat(129)] {
            assert!(id(bad).starts_with("req_"), "{bad}");
        }
    }
}
