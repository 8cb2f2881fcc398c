//! The trace spans that a worker emits for the attempts it executes.

use remuda_domain::{Run, RunInput, RunState, Timestamp, run::ParkReason, step::Step, trace::TraceContext};
use remuda_engine::{Execution, now};
use remuda_store::{Commit, Committed, Grant, Store};
use remuda_telemetry::spans::{SpanKind, emit};
use remuda_trace::{AttemptEnd, RunTrace, live};

/// How a run's token reached this worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    /// The trace that caused the token to be published.
    pub(crate) origin: Option<TraceContext>,
    pub(crate) received: Timestamp,
}

/// The trace of a run, while this worker executes an attempt of it.
#[derive(Debug)]
pub(crate) struct AttemptTrace {
    trace: RunTrace,
    begun: Timestamp,
}

impl AttemptTrace {
    /// Emits the spans that end with the start of the attempt. `arrival` is `None` if the run was granted without a
    /// token.
    pub(crate) fn begin(grant: &Grant, arrival: Option<Arrival>) -> Option<Self> {
        let trace = RunTrace::of(&grant.run);
        if !trace.is_collected() {
            return None;
        }
        let (epoch, begun) = (grant.fence.epoch, now());
        let (reason, since) = waited(grant);
        emit(trace.wait_span(epoch, reason, (since, begun)));
        if let Some(Arrival { origin, received }) = arrival {
            // A token is for a session. The run for which it was published may not be the first in the queue.
            let (own, other) = match origin {
                Some(origin) if origin.trace == trace.run().trace => (origin, None),
                other => (trace.run(), other),
            };
            let times = (received, begun);
            emit(live(own, "receive token", times).kind(SpanKind::Consumer).linked(other));
            emit(live(trace.attempt(epoch), "claim", times));
        }
        Some(Self { trace, begun })
    }

    /// The run's span, as the origin of events about its end.
    pub(crate) fn origin(&self) -> TraceContext {
        self.trace.run()
    }

    pub(crate) fn run(&self) -> &RunTrace {
        &self.trace
    }

    pub(crate) fn committed(&self, commit: &Commit, begun: Timestamp) {
        self.trace.emit_commit(commit, begun, now());
    }

    /// Emits the span of the attempt, and that of the run if it has ended.
    pub(crate) async fn end(self, store: &dyn Store, grant: &Grant, end: AttemptEnd) {
        let (run, at) = (&grant.run, now());
        let agent = grant.agent.as_deref();
        let attempt = self.trace.attempt_span(&grant.fence, run.attempt, agent, end, (self.begun, at));
        emit(attempt.linked(self.trace.attempt_before(grant.fence.epoch, run.attempt)));
        let ended = match (&run.input, end) {
            (
                _,
                AttemptEnd::HandedOver | AttemptEnd::Parked(_) | AttemptEnd::Abandoned | AttemptEnd::Lost,
            ) => return,
            // The result of a run that only called tools is known here, and there may be many such runs: save the
            // read.
            (RunInput::Tools(_), AttemptEnd::Ended(RunState::Completed)) => {
                Ok(Run { state: RunState::Completed, finished_at: Some(at), ..run.clone() })
            }
            // The store has the total cost.
            (_, AttemptEnd::Ended(_)) => store.get_run(run.tenant, run.id).await,
        };
        match ended {
            Ok(run) => emit(self.trace.run_span(&run, at)),
            Err(error) => tracing::warn!(error = error.chain(), "cannot emit the span of a run"),
        }
    }
}

/// How an execution ended on this worker, before the commit.
pub(crate) fn execution_end(execution: &Execution) -> AttemptEnd {
    match execution {
        Execution::Ended(ending) => AttemptEnd::Ended(ending.end.state),
        Execution::HandedOver(_) => AttemptEnd::HandedOver,
        Execution::Parked(_, parking) => AttemptEnd::Parked(parking.reason),
        Execution::Abandoned => AttemptEnd::Abandoned,
    }
}

/// How the attempt ended after the commit: a run that was to be handed over may have ended instead.
pub(crate) fn end_after_commit(end: AttemptEnd, committed: &Committed, grant: &Grant) -> AttemptEnd {
    let mut run_events = committed.events.iter().filter(|event| event.run == Some(grant.run.id));
    let ended: Option<RunState> = run_events.find_map(|event| event.body.terminal_state());
    ended.map_or(end, AttemptEnd::Ended)
}

/// What the run waited for before this attempt, and since when. After the first attempt only its steps show it: a
/// resumed run no longer has the reason why it was parked, so a wait for a budget or an external event looks like a
/// wait in the queue.
pub(crate) fn waited(grant: &Grant) -> (Option<ParkReason>, Timestamp) {
    // `started_at` of a first attempt is the claim itself.
    if grant.run.attempt <= 1 {
        return (None, grant.run.created_at);
    }
    let last = |step: &Step| step.finished_at.unwrap_or(step.started_at);
    let Some(since) = grant.steps.iter().map(last).max() else {
        return (None, grant.run.started_at.unwrap_or(grant.run.created_at));
    };
    let open = || grant.steps.iter().filter(|step| !step.is_finished()).filter_map(Step::links);
    let reason = if open().any(|links| links.child.is_some()) {
        Some(ParkReason::Children)
    } else {
        open().any(|links| links.approval.is_some()).then_some(ParkReason::Approval)
    };
    (reason, since)
}
