//! Log spans of a worker, a session and a run.
//!
//! They are for the log only and are not exported. Their level is `error`, which the log filter never drops, so ids
//! are never missing. A span costs half a microsecond: its few fields are formatted once, and read again only when a
//! line is logged.

use remuda_domain::{Run, SessionId, TenantId, WorkerId, trace::TraceContext};
use tracing::{Span, error_span, field::display};

pub(crate) fn worker_span(worker: WorkerId) -> Span {
    error_span!("worker", %worker)
}

pub(crate) fn session_span(tenant: TenantId, session: SessionId) -> Span {
    error_span!("session", %session, %tenant)
}

/// Nested in the span of the run's session.
pub(crate) fn run_span(run: &Run) -> Span {
    let trace_id = TraceContext::cause_of(run).map(|cause| display(cause.trace));
    error_span!("run", run = %run.id, trace_id)
}
