//! What lines of the log are about: the span around a request.

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
/// What is kept of a path: names in it are the caller's.
const MAX_PATH_CHARS: usize = 256;

/// The id by which a request is found in the log.
#[derive(Clone, Debug)]
pub struct RequestId(pub String);

/// The caller's own, if it can stand in a log; else a new one.
fn request_id<B>(request: &Request<B>) -> RequestId {
    let given = request.headers().get(REQUEST_ID).and_then(|value| value.to_str().ok());
    let plain = |id: &&str| {
        let fits = (1..=MAX_ID_CHARS).contains(&id.len());
        fits && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte))
    };
    let new = || ["req_", Uuid::now_v7().simple().encode_lower(&mut Uuid::encode_buffer())].concat();
    RequestId(given.filter(plain).map_or_else(new, str::to_owned))
}

/// The request's id. One that has none gets it.
pub fn identify<B>(request: &mut Request<B>) -> RequestId {
    if let Some(id) = request.extensions().get::<RequestId>() {
        return id.clone();
    }
    let id = request_id(request);
    request.extensions_mut().insert(id.clone());
    id
}

/// A span for the log, around all that is done for a request. Not exported, and of the level `error`, which the log's filter
/// leaves alone, so that ids are never missing.
pub fn of_request<B>(request: &mut Request<B>) -> Span {
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
    request.extensions_mut().insert(Around { span: span.clone(), caller });
    span
}

/// The span around a request, for those who learn more about it, and what was learnt when it was made.
#[derive(Clone)]
struct Around {
    span: Span,
    caller: Option<TraceContext>,
}

/// The trace of a request's caller.
pub fn caller_of<B>(request: &Request<B>) -> Option<TraceContext> {
    let around = request.extensions().get::<Around>();
    around.map_or_else(|| caller(request.headers()), |around| around.caller)
}

/// Says whose request it is.
pub fn note_caller(request: &Extensions, caller: &Principal) {
    if let Some(Around { span, .. }) = request.get::<Around>() {
        span.record("tenant", display(caller.tenant));
    }
}

/// Says which trace the request that is being served has begun. To be called outside of the trace's own spans.
pub(crate) fn note_trace(trace: TraceContext) {
    Span::current().record("trace_id", display(trace.trace));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_can_stand_in_a_log_is_kept() {
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
