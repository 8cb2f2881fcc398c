//! Spans of runs, waits and attempts.

use chrono::Utc;
use opentelemetry::KeyValue;
use remuda_domain::{
    Epoch, Event, Fence, Run, RunId, RunInput, RunState, SessionId, StepId, TenantId, Timestamp, WorkerId,
    budget::Total,
    run::{Failure, ParkReason},
    step::Step,
    trace::{SpanId, TraceContext, TraceId},
};
use remuda_store::Commit;
use remuda_telemetry::spans::{Span, SpanKind, emit};

use crate::{attributes as name, step};

/// The trace of a run: builds its spans with their ids and parents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunTrace {
    cause: Option<TraceContext>,
    trace: TraceId,
    sampled: bool,
    run: RunId,
    session: SessionId,
    tenant: TenantId,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptEnd {
    Ended(RunState),
    HandedOver,
    Parked(ParkReason),
    /// The worker gave up the session, which another worker may own already.
    Abandoned,
    /// The worker's lease expired.
    Lost,
}

impl AttemptEnd {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Ended(state) => state.as_str(),
            Self::HandedOver => "handed_over",
            Self::Parked(_) => "parked",
            Self::Abandoned => "abandoned",
            Self::Lost => "lost",
        }
    }
}

/// A span of work that this process has just finished, below `parent`.
#[must_use]
pub fn live(parent: TraceContext, name: &'static str, times: (Timestamp, Timestamp)) -> Span {
    Span::below(parent, SpanId::random(), name, times)
}

/// The delivery of a run's end to readers: from its commit until a stream service received it. `None` for other events.
#[must_use]
pub fn delivery(run: TraceContext, events: &[Event]) -> Option<Span> {
    let end = events.iter().find(|event| event.body.terminal_state().is_some())?;
    let count = i64::try_from(events.len()).unwrap_or(i64::MAX);
    let attributes = [KeyValue::new(name::CURSOR, end.cursor), KeyValue::new(name::COMMIT_EVENTS, count)];
    let span = live(run, "deliver events", (end.at, Utc::now()));
    Some(span.kind(SpanKind::Consumer).with(attributes))
}

impl RunTrace {
    /// A run without a traced cause gets a trace of its own, which is not sampled.
    #[must_use]
    pub fn of(run: &Run) -> Self {
        let Run { id, session, tenant, .. } = *run;
        let cause = TraceContext::cause_of(run);
        let trace = cause.map_or_else(|| TraceId::of_run(id), |cause| cause.trace);
        Self { cause, trace, sampled: cause.is_some_and(|cause| cause.sampled), run: id, session, tenant }
    }

    /// Whether its spans are sampled and this process exports spans.
    #[must_use]
    pub fn is_collected(&self) -> bool {
        self.sampled && remuda_telemetry::spans::are_exported()
    }

    /// The context of a step, to be passed on to other processes. `None` for a run that came without a trace.
    #[must_use]
    pub fn passed_on(&self, step: StepId) -> Option<TraceContext> {
        self.cause.map(|_| self.step(step))
    }

    /// Emits the spans of a commit and of the steps that ended with it.
    pub fn emit_commit(&self, commit: &Commit, begun: Timestamp, done: Timestamp) {
        commit.steps.iter().filter_map(|step| self.step_span(step)).for_each(emit);
        let counts = [(name::COMMIT_STEPS, commit.steps.len()), (name::COMMIT_EVENTS, commit.events.len())];
        let counts =
            counts.map(|(name, count)| KeyValue::new(name, i64::try_from(count).unwrap_or(i64::MAX)));
        emit(live(self.attempt(commit.fence.epoch), "commit", (begun, done)).with(counts));
    }

    fn at(&self, span: SpanId) -> TraceContext {
        TraceContext { trace: self.trace, span, sampled: self.sampled }
    }

    /// The context of the run's own span.
    #[must_use]
    pub fn run(&self) -> TraceContext {
        self.at(SpanId::of_run(self.run))
    }

    /// The context of the attempt under this epoch.
    #[must_use]
    pub fn attempt(&self, epoch: Epoch) -> TraceContext {
        self.at(SpanId::of_attempt(self.run, epoch))
    }

    /// The attempt before this one, if it is not the first. Steps cannot tell, as that attempt may have had none. But a
    /// claim raises the epoch by one, and the first run of a session stays first.
    #[must_use]
    pub fn attempt_before(&self, epoch: Epoch, number: u32) -> Option<TraceContext> {
        (number > 1).then(|| self.attempt(epoch - 1))
    }

    #[must_use]
    pub fn step(&self, step: StepId) -> TraceContext {
        self.at(SpanId::of_step(step))
    }

    fn ids(&self) -> [KeyValue; 3] {
        [
            KeyValue::new(name::RUN_ID, self.run.to_string()),
            KeyValue::new(name::SESSION_ID, self.session.to_string()),
            KeyValue::new(name::TENANT_ID, self.tenant.to_string()),
        ]
    }

    /// The span of the run, from its submission to its end, or to `until`.
    #[must_use]
    pub fn run_span(&self, run: &Run, until: Timestamp) -> Span {
        let times = (run.created_at, run.finished_at.unwrap_or(until));
        let id = SpanId::of_run(self.run);
        let title = match run.input {
            RunInput::Message(_) => "run message",
            RunInput::Tools(_) => "run tools",
        };
        let mut span = Span::below(self.at(id), id, title, times)
            .with(self.ids())
            .with([
                KeyValue::new(name::RUN_KIND, run.input.kind()),
                KeyValue::new(name::RUN_STATE, run.state.as_str()),
                KeyValue::new(name::RUN_SEQ, run.seq),
                KeyValue::new(name::CONVERSATION_ID, self.session.to_string()),
            ])
            .with(spent(&run.spent));
        span.parent = self.cause.map(|cause| cause.span);
        if let Some(failure) = &run.failure {
            span = span.with([error_type(failure)]).failed(Some(failure.message.clone()));
        }
        span
    }

    /// The wait before an attempt: in the queue, or for what parked the run.
    #[must_use]
    pub fn wait_span(&self, epoch: Epoch, reason: Option<ParkReason>, times: (Timestamp, Timestamp)) -> Span {
        self.wait_span_with_id(SpanId::of_wait(self.run, epoch), reason, times)
    }

    pub(crate) fn wait_span_with_id(
        &self,
        id: SpanId,
        reason: Option<ParkReason>,
        times: (Timestamp, Timestamp),
    ) -> Span {
        let (title, what) = match reason {
            None => ("wait in queue", "queue"),
            Some(ParkReason::Approval) => ("wait for approval", "approval"),
            Some(ParkReason::Children) => ("wait for children", "children"),
            Some(ParkReason::Budget) => ("wait for budget", "budget"),
            Some(ParkReason::External) => ("wait", "external"),
        };
        Span::below(self.run(), id, title, times).with(self.ids()).with([KeyValue::new(name::WAIT_FOR, what)])
    }

    /// The span of an attempt.
    #[must_use]
    pub fn attempt_span(
        &self,
        fence: &Fence,
        number: u32,
        agent: Option<&str>,
        end: AttemptEnd,
        times: (Timestamp, Timestamp),
    ) -> Span {
        let span = self.attempt_span_from_store(fence.worker, Some(fence.epoch), number, end, times);
        match agent {
            Some(agent) => span.with([
                KeyValue::new(name::OPERATION_NAME, "invoke_agent"),
                KeyValue::new(name::AGENT_NAME, agent.to_owned()),
            ]),
            None => span,
        }
    }

    /// The span of an attempt, as far as the store knows it. Without the epoch its id is random.
    pub(crate) fn attempt_span_from_store(
        &self,
        worker: WorkerId,
        epoch: Option<Epoch>,
        number: u32,
        end: AttemptEnd,
        times: (Timestamp, Timestamp),
    ) -> Span {
        let id = epoch.map_or_else(SpanId::random, |epoch| SpanId::of_attempt(self.run, epoch));
        let span = Span::below(self.run(), id, "attempt", times)
            .kind(SpanKind::Consumer)
            .with(self.ids())
            .with([
                KeyValue::new(name::ATTEMPT, i64::from(number)),
                KeyValue::new(name::WORKER_ID, worker.to_string()),
                KeyValue::new(name::RUN_OUTCOME, end.as_str()),
            ])
            .with(epoch.map(|epoch| KeyValue::new(name::EPOCH, epoch)));
        match end {
            AttemptEnd::Lost => span.failed(Some("the worker was lost".to_owned())),
            AttemptEnd::Abandoned => span.failed(Some("the session had to be given up".to_owned())),
            AttemptEnd::Ended(_) | AttemptEnd::HandedOver | AttemptEnd::Parked(_) => span,
        }
    }

    /// The span of a finished step, below the attempt that started it. `None` if it was never executed.
    #[must_use]
    pub fn step_span(&self, step: &Step) -> Option<Span> {
        let end = step.finished_at.filter(|_| step::was_executed(step))?;
        let parent = self.attempt(step.epoch);
        let span = Span::below(parent, SpanId::of_step(step.id), step::title(step), (step.started_at, end));
        Some(step::describe(span.with(self.ids()), step))
    }
}

fn error_type(failure: &Failure) -> KeyValue {
    KeyValue::new(name::ERROR_TYPE, failure.code.clone())
}

/// Tokens and cost, if there were model calls.
fn spent(total: &Total) -> impl Iterator<Item = KeyValue> {
    let used = total.model_calls > 0;
    let counts = [
        (name::USAGE_INPUT_TOKENS, total.usage.input_tokens),
        (name::USAGE_OUTPUT_TOKENS, total.usage.output_tokens),
    ];
    let counts = counts.into_iter().map(|(name, count)| KeyValue::new(name, count.cast_signed()));
    counts.chain([step::dollars(total.micros)]).filter(move |_| used)
}

/// The fence of a worker that an event names.
pub(crate) fn fence_of(run: &Run, worker: WorkerId, epoch: Epoch) -> Fence {
    Fence { tenant: run.tenant, session: run.session, worker, epoch }
}
