//! What a worker tells of the runs it executes, to whoever collects traces.

use remuda_domain::{Run, RunInput, RunState, Timestamp, run::ParkReason, step::Step, trace::TraceContext};
use remuda_engine::{Execution, now};
use remuda_store::{Commit, Committed, Grant, Store};
use remuda_telemetry::spans::{SpanKind, emit};
use remuda_trace::{AttemptEnd, RunTrace, live};

/// How a run came into this worker's hands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    /// What its token was published for.
    pub(crate) origin: Option<TraceContext>,
    pub(crate) received: Timestamp,
}

/// A run whose trace is collected, while this worker executes it.
#[derive(Debug)]
pub(crate) struct Traced {
    trace: RunTrace,
    begun: Timestamp,
}

impl Traced {
    /// Tells how the run got here. `arrival` is missing for the next run of a session in hand.
    pub(crate) fn begin(grant: &Grant, arrival: Option<Arrival>) -> Option<Self> {
        let trace = RunTrace::of(&grant.run);
        if !trace.is_collected() {
            return None;
        }
        let (epoch, begun) = (grant.fence.epoch, now());
        let (reason, since) = waited(grant);
        emit(trace.wait(epoch, reason, (since, begun)));
        if let Some(Arrival { origin, received }) = arrival {
            // A token wakes for a session. The run that it was published for may not be the first in line.
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

    /// The run as a whole, for readers of its end.
    pub(crate) fn origin(&self) -> TraceContext {
        self.trace.run()
    }

    pub(crate) fn committed(&self, commit: &Commit, begun: Timestamp) {
        self.trace.emit_commit(commit, begun, now());
    }

    /// Tells of the attempt, and of the run if it is over with it.
    pub(crate) async fn end(self, store: &dyn Store, grant: &Grant, end: AttemptEnd) {
        let (run, at) = (&grant.run, now());
        let agent = grant.agent.as_deref();
        let attempt = self.trace.attempted(&grant.fence, run.attempt, agent, end, (self.begun, at));
        emit(attempt.linked(self.trace.attempt_before(grant.fence.epoch, run.attempt)));
        let whole = match (&run.input, end) {
            (
                _,
                AttemptEnd::HandedOver | AttemptEnd::Parked(_) | AttemptEnd::Abandoned | AttemptEnd::Lost,
            ) => return,
            // All is known of what only called tools, and there may be many such runs.
            (RunInput::Tools(_), AttemptEnd::Ended(RunState::Completed)) => {
                Ok(Run { state: RunState::Completed, finished_at: Some(at), ..run.clone() })
            }
            // The store has added up what it cost.
            (_, AttemptEnd::Ended(_)) => store.get_run(run.tenant, run.id).await,
        };
        match whole {
            Ok(run) => emit(self.trace.whole(&run, at)),
            Err(error) => tracing::warn!(error = error.chain(), "the span of a run could not be told"),
        }
    }
}

/// How an execution came to its end on this worker, before anybody was told.
pub(crate) fn end_of(execution: &Execution) -> AttemptEnd {
    match execution {
        Execution::Ended(ending) => AttemptEnd::Ended(ending.end.state),
        Execution::HandedOver(_) => AttemptEnd::HandedOver,
        Execution::Parked(_, parking) => AttemptEnd::Parked(parking.reason),
        Execution::Abandoned => AttemptEnd::Abandoned,
    }
}

/// The same once the store has decided: a run that was to be given back may have ended instead.
pub(crate) fn end_as_committed(end: AttemptEnd, committed: &Committed, grant: &Grant) -> AttemptEnd {
    let mut of_run = committed.events.iter().filter(|event| event.run == Some(grant.run.id));
    let ended: Option<RunState> = of_run.find_map(|event| event.body.terminal_state());
    ended.map_or(end, AttemptEnd::Ended)
}

/// What the run waited for before it came here, and since when. After the first start only its steps tell: a run that is ready
/// again has forgotten why it was parked, so that a wait for money or for something outside looks like one in the queue.
pub(crate) fn waited(grant: &Grant) -> (Option<ParkReason>, Timestamp) {
    // Its start is the claim that brought it here.
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
