//! Reconstructs the trace of a run from the store.

use remuda_domain::{
    Epoch, Event, EventBody, Run, SessionId, Timestamp, WorkerId, run::ParkReason, step::Step, trace::SpanId,
};
use remuda_telemetry::spans::Span;

use crate::{AttemptEnd, RunTrace, step};

/// A reconstructed span.
#[derive(Clone, Debug, PartialEq)]
pub struct HistorySpan {
    pub session: SessionId,
    pub span: Span,
    /// The span has not ended yet.
    pub open: bool,
}

/// An attempt that has ended.
struct Attempt {
    span: Span,
    from: Timestamp,
}

/// An attempt under way.
struct OpenAttempt {
    worker: WorkerId,
    number: u32,
    from: Timestamp,
}

/// The spans of a run until `now`, from its steps and its retained events, in their order.
#[must_use]
pub fn history(run: &Run, steps: &[Step], events: &[Event], now: Timestamp) -> Vec<HistorySpan> {
    let mut builder = HistoryBuilder {
        run,
        steps,
        trace: RunTrace::of(run),
        now,
        waiting: Some((None, run.created_at)),
        attempt: None,
        attempts: Vec::new(),
        spans: Vec::new(),
    };
    builder.add(builder.trace.run_span(run, now), run.finished_at.is_none());
    for event in events.iter().filter(|event| event.run == Some(run.id)) {
        builder.add_event(event);
    }
    builder.close_open_spans();
    for step in steps {
        builder.add_step(step);
    }
    builder.spans.sort_by_key(|span| span.span.start);
    builder.spans
}

struct HistoryBuilder<'a> {
    run: &'a Run,
    steps: &'a [Step],
    trace: RunTrace,
    now: Timestamp,
    /// What the run waits for, and since when.
    waiting: Option<(Option<ParkReason>, Timestamp)>,
    attempt: Option<OpenAttempt>,
    attempts: Vec<Attempt>,
    spans: Vec<HistorySpan>,
}

impl HistoryBuilder<'_> {
    fn add(&mut self, span: Span, open: bool) {
        self.spans.push(HistorySpan { session: self.run.session, span, open });
    }

    fn add_event(&mut self, event: &Event) {
        let at = event.at;
        match &event.body {
            EventBody::RunStarted { attempt, worker } => {
                // The previous attempt may have ended without an event: its worker was lost.
                self.end_attempt(AttemptEnd::Lost, at, false);
                self.end_wait(at, false);
                self.attempt = Some(OpenAttempt { worker: *worker, number: *attempt, from: at });
            }
            EventBody::RunHandedOver { .. } => self.start_wait(AttemptEnd::HandedOver, None, at),
            EventBody::RunAttemptLost { .. } => self.start_wait(AttemptEnd::Lost, None, at),
            EventBody::RunParked { reason } => {
                self.start_wait(AttemptEnd::Parked(*reason), Some(*reason), at)
            }
            EventBody::RunResumed => {
                self.end_wait(at, false);
                self.waiting = Some((None, at));
            }
            body => {
                if let Some(state) = body.terminal_state() {
                    self.end_attempt(AttemptEnd::Ended(state), at, false);
                    self.end_wait(at, false);
                }
            }
        }
    }

    /// Ends the attempt and starts a wait.
    fn start_wait(&mut self, end: AttemptEnd, reason: Option<ParkReason>, at: Timestamp) {
        self.end_attempt(end, at, false);
        self.waiting = Some((reason, at));
    }

    fn end_wait(&mut self, at: Timestamp, open: bool) {
        let Some((reason, since)) = self.waiting.take() else { return };
        let span = self.trace.wait_span_with_id(SpanId::random(), reason, (since, at));
        self.add(span, open);
    }

    fn end_attempt(&mut self, end: AttemptEnd, at: Timestamp, open: bool) {
        let Some(OpenAttempt { worker, number, from }) = self.attempt.take() else { return };
        let span =
            self.trace.attempt_span_from_store(worker, self.epoch_between(from, at), number, end, (from, at));
        self.attempts.push(Attempt { span: span.clone(), from });
        self.add(span, open);
    }

    /// The epoch of an attempt. Events do not contain it, but its steps do.
    fn epoch_between(&self, from: Timestamp, until: Timestamp) -> Option<Epoch> {
        let step = self.steps.iter().find(|step| (from..=until).contains(&step.started_at));
        step.map(|step| step.epoch)
    }

    /// Ends open spans at the end of the run, or now. The start event of a run may have been trimmed, or not been read: a
    /// queue wait then ends when the run started.
    fn close_open_spans(&mut self) {
        let (now, open) = (self.now, self.run.finished_at.is_none());
        let until = self.run.finished_at.unwrap_or(now);
        self.end_attempt(AttemptEnd::Ended(self.run.state), until, open);
        match (self.waiting, self.run.started_at) {
            (Some((None, since)), Some(started)) if since <= started => self.end_wait(started, false),
            _ => self.end_wait(until, open),
        }
    }

    fn add_step(&mut self, step: &Step) {
        let open = !step.is_finished();
        let span = if open { Some(self.open_step_span(step)) } else { self.trace.step_span(step) };
        let Some(mut span) = span else { return };
        let attempt = self.attempts.iter().rfind(|attempt| attempt.from <= step.started_at);
        let parent = attempt.map_or_else(|| self.trace.run(), |attempt| attempt.span.context);
        span.parent = Some(parent.span);
        self.add(span, open);
    }

    /// The span of an unfinished step, which lasts until its run ends, or until now.
    fn open_step_span(&self, step: &Step) -> Span {
        let until = self.run.finished_at.unwrap_or(self.now);
        let (id, times) = (SpanId::of_step(step.id), (step.started_at, until));
        step::describe(Span::below(self.trace.run(), id, step::title(step), times), step)
    }
}

#[cfg(test)]
pub(crate) mod tests;
