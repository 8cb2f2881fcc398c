//! Spans of a run as a whole, and of what workers do of it.

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

/// Where the spans of a run hang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunTrace {
    cause: Option<TraceContext>,
    trace: TraceId,
    sampled: bool,
    run: RunId,
    session: SessionId,
    tenant: TenantId,
}

/// How what a worker does of a run came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptEnd {
    Ended(RunState),
    HandedOver,
    Parked(ParkReason),
    /// The worker gave up what may be another's already.
    Abandoned,
    /// Nobody heard of the worker any more.
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

/// A span that this process has just done itself, below another one.
#[must_use]
pub fn live(parent: TraceContext, name: &'static str, times: (Timestamp, Timestamp)) -> Span {
    Span::below(parent, SpanId::random(), name, times)
}

/// The end of a run on its way to readers: from its commit until it came to a process that has some. None for other events.
#[must_use]
pub fn delivery(run: TraceContext, events: &[Event]) -> Option<Span> {
    let end = events.iter().find(|event| event.body.terminal_state().is_some())?;
    let count = i64::try_from(events.len()).unwrap_or(i64::MAX);
    let attributes = [KeyValue::new(name::CURSOR, end.cursor), KeyValue::new(name::COMMIT_EVENTS, count)];
    let span = live(run, "deliver events", (end.at, Utc::now()));
    Some(span.kind(SpanKind::Consumer).with(attributes))
}

impl RunTrace {
    /// A run that nobody traces has a trace of its own all the same, which is not collected.
    #[must_use]
    pub fn of(run: &Run) -> Self {
        let Run { id, session, tenant, .. } = *run;
        let cause = TraceContext::cause_of(run);
        let trace = cause.map_or_else(|| TraceId::of_run(id), |cause| cause.trace);
        Self { cause, trace, sampled: cause.is_some_and(|cause| cause.sampled), run: id, session, tenant }
    }

    /// Whether anybody wants to be told of its spans, and can be told now.
    #[must_use]
    pub fn is_collected(&self) -> bool {
        self.sampled && remuda_telemetry::spans::are_wanted()
    }

    /// A step, for those who go on with its trace elsewhere. None of a run that came without one.
    #[must_use]
    pub fn passed_on(&self, step: StepId) -> Option<TraceContext> {
        self.cause.map(|_| self.step(step))
    }

    /// Tells of a commit, and of the steps that are over with it.
    pub fn emit_commit(&self, commit: &Commit, begun: Timestamp, done: Timestamp) {
        commit.steps.iter().filter_map(|step| self.stepped(step)).for_each(emit);
        let counts = [(name::COMMIT_STEPS, commit.steps.len()), (name::COMMIT_EVENTS, commit.events.len())];
        let counts =
            counts.map(|(name, count)| KeyValue::new(name, i64::try_from(count).unwrap_or(i64::MAX)));
        emit(live(self.attempt(commit.fence.epoch), "commit", (begun, done)).with(counts));
    }

    fn at(&self, span: SpanId) -> TraceContext {
        TraceContext { trace: self.trace, span, sampled: self.sampled }
    }

    /// The run as a whole.
    #[must_use]
    pub fn run(&self) -> TraceContext {
        self.at(SpanId::of_run(self.run))
    }

    /// What one owner of the session does of it.
    #[must_use]
    pub fn attempt(&self, epoch: Epoch) -> TraceContext {
        self.at(SpanId::of_attempt(self.run, epoch))
    }

    /// The attempt before one that is not the first. Steps do not tell, as it may have had none; but a claim raises the epoch by
    /// one, and a run at the head of its line stays there.
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

    /// The run from its submission to its end, or to now.
    #[must_use]
    pub fn whole(&self, run: &Run, until: Timestamp) -> Span {
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

    /// What came before an attempt: a wait in the queue, or for what parked the run.
    #[must_use]
    pub fn wait(&self, epoch: Epoch, reason: Option<ParkReason>, times: (Timestamp, Timestamp)) -> Span {
        self.waited(SpanId::of_wait(self.run, epoch), reason, times)
    }

    pub(crate) fn waited(
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

    /// What one worker did of the run.
    #[must_use]
    pub fn attempted(
        &self,
        fence: &Fence,
        number: u32,
        agent: Option<&str>,
        end: AttemptEnd,
        times: (Timestamp, Timestamp),
    ) -> Span {
        let span = self.remembered(fence.worker, Some(fence.epoch), number, end, times);
        match agent {
            Some(agent) => span.with([
                KeyValue::new(name::OPERATION_NAME, "invoke_agent"),
                KeyValue::new(name::AGENT_NAME, agent.to_owned()),
            ]),
            None => span,
        }
    }

    /// What one worker did of the run, as far as the store knows. Without the epoch it has an id that nobody else was told.
    pub(crate) fn remembered(
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

    /// A step that is over. It hangs below the attempt that began it.
    #[must_use]
    pub fn stepped(&self, step: &Step) -> Option<Span> {
        let end = step.finished_at.filter(|_| step::was_made(step))?;
        let parent = self.attempt(step.epoch);
        let span = Span::below(parent, SpanId::of_step(step.id), step::title(step), (step.started_at, end));
        Some(step::describe(span.with(self.ids()), step))
    }
}

fn error_type(failure: &Failure) -> KeyValue {
    KeyValue::new(name::ERROR_TYPE, failure.code.clone())
}

/// Tokens and money, where there were any.
fn spent(total: &Total) -> impl Iterator<Item = KeyValue> {
    let used = total.model_calls > 0;
    let counts = [
        (name::USAGE_INPUT_TOKENS, total.usage.input_tokens),
        (name::USAGE_OUTPUT_TOKENS, total.usage.output_tokens),
    ];
    let counts = counts.into_iter().map(|(name, count)| KeyValue::new(name, count.cast_signed()));
    counts.chain([step::dollars(total.micros)]).filter(move |_| used)
}

/// Which worker an event names, for those that tell of one.
pub(crate) fn fence_of(run: &Run, worker: WorkerId, epoch: Epoch) -> Fence {
    Fence { tenant: run.tenant, session: run.session, worker, epoch }
}
