//! What lines of the log are about: the spans around the work for a session and a run.
//!
//! They are for the log alone and not exported. They have the level `error` because the log's filter leaves these alone, so that ids
//! are never missing. One costs half a microsecond: its few fields are written once, and looked at again only where a line is.

use remuda_domain::{Run, SessionId, TenantId, WorkerId, trace::TraceContext};
use tracing::{Span, error_span, field::display};

pub(crate) fn of_worker(worker: WorkerId) -> Span {
    error_span!("worker", %worker)
}

pub(crate) fn of_session(tenant: TenantId, session: SessionId) -> Span {
    error_span!("session", %session, %tenant)
}

/// A run of the session around it.
pub(crate) fn of_run(run: &Run) -> Span {
    let trace_id = TraceContext::cause_of(run).map(|cause| display(cause.trace));
    error_span!("run", run = %run.id, trace_id)
}
