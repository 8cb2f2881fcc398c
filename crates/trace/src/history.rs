//! The trace of a run as the store remembers it.

use remuda_domain::{
    Epoch, Event, EventBody, Run, SessionId, Timestamp, WorkerId, run::ParkReason, step::Step, trace::SpanId,
};
use remuda_telemetry::spans::Span;

use crate::{AttemptEnd, RunTrace, step};

/// A span, and whether it still goes on.
#[derive(Clone, Debug, PartialEq)]
pub struct Chapter {
    pub session: SessionId,
    pub span: Span,
    pub open: bool,
}

/// What a worker did of the run, from one event to another.
struct Attempt {
    span: Span,
    from: Timestamp,
}

/// Who works on a run for which time, and since when.
struct Work {
    worker: WorkerId,
    number: u32,
    from: Timestamp,
}

/// What is known of a run until `now`, from its steps and from those of its events that are kept, in their order.
#[must_use]
pub fn history(run: &Run, steps: &[Step], events: &[Event], now: Timestamp) -> Vec<Chapter> {
    let mut telling = Telling {
        run,
        steps,
        trace: RunTrace::of(run),
        now,
        waiting: Some((None, run.created_at)),
        working: None,
        attempts: Vec::new(),
        chapters: Vec::new(),
    };
    telling.add(telling.trace.whole(run, now), run.finished_at.is_none());
    for event in events.iter().filter(|event| event.run == Some(run.id)) {
        telling.hear(event);
    }
    telling.conclude();
    for step in steps {
        telling.step(step);
    }
    telling.chapters.sort_by_key(|chapter| chapter.span.start);
    telling.chapters
}

struct Telling<'a> {
    run: &'a Run,
    steps: &'a [Step],
    trace: RunTrace,
    now: Timestamp,
    /// What the run waits for, and since when.
    waiting: Option<(Option<ParkReason>, Timestamp)>,
    working: Option<Work>,
    attempts: Vec<Attempt>,
    chapters: Vec<Chapter>,
}

impl Telling<'_> {
    fn add(&mut self, span: Span, open: bool) {
        self.chapters.push(Chapter { session: self.run.session, span, open });
    }

    fn hear(&mut self, event: &Event) {
        let at = event.at;
        match &event.body {
            EventBody::RunStarted { attempt, worker } => {
                // A worker that was lost before it could say that it began leaves no event.
                self.end_attempt(AttemptEnd::Lost, at, false);
                self.end_wait(at, false);
                self.working = Some(Work { worker: *worker, number: *attempt, from: at });
            }
            EventBody::RunHandedOver { .. } => self.rest(AttemptEnd::HandedOver, None, at),
            EventBody::RunAttemptLost { .. } => self.rest(AttemptEnd::Lost, None, at),
            EventBody::RunParked { reason } => self.rest(AttemptEnd::Parked(*reason), Some(*reason), at),
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

    /// The run is nobody's.
    fn rest(&mut self, end: AttemptEnd, reason: Option<ParkReason>, at: Timestamp) {
        self.end_attempt(end, at, false);
        self.waiting = Some((reason, at));
    }

    fn end_wait(&mut self, at: Timestamp, open: bool) {
        let Some((reason, since)) = self.waiting.take() else { return };
        let span = self.trace.waited(SpanId::random(), reason, (since, at));
        self.add(span, open);
    }

    fn end_attempt(&mut self, end: AttemptEnd, at: Timestamp, open: bool) {
        let Some(Work { worker, number, from }) = self.working.take() else { return };
        let span = self.trace.remembered(worker, self.epoch_between(from, at), number, end, (from, at));
        self.attempts.push(Attempt { span: span.clone(), from });
        self.add(span, open);
    }

    /// No event tells of the epoch of an attempt, but its steps do.
    fn epoch_between(&self, from: Timestamp, until: Timestamp) -> Option<Epoch> {
        let its = self.steps.iter().find(|step| (from..=until).contains(&step.started_at));
        its.map(|step| step.epoch)
    }

    /// What goes on, goes on until now. What nothing is known of is left out: the event that a run started may be gone, or too far away.
    fn conclude(&mut self) {
        let (now, open) = (self.now, self.run.finished_at.is_none());
        let until = self.run.finished_at.unwrap_or(now);
        self.end_attempt(AttemptEnd::Ended(self.run.state), until, open);
        match (self.waiting, self.run.started_at) {
            (Some((None, since)), Some(started)) if since <= started => self.end_wait(started, false),
            _ => self.end_wait(until, open),
        }
    }

    fn step(&mut self, step: &Step) {
        let open = !step.is_finished();
        let shown = if open { Some(self.unfinished(step)) } else { self.trace.stepped(step) };
        let Some(mut span) = shown else { return };
        let attempt = self.attempts.iter().rfind(|attempt| attempt.from <= step.started_at);
        let parent = attempt.map_or_else(|| self.trace.run(), |attempt| attempt.span.context);
        span.parent = Some(parent.span);
        self.add(span, open);
    }

    /// A step as it is announced, which lasts until it is over, or until its run is.
    fn unfinished(&self, step: &Step) -> Span {
        let until = self.run.finished_at.unwrap_or(self.now);
        let (id, times) = (SpanId::of_step(step.id), (step.started_at, until));
        step::describe(Span::below(self.trace.run(), id, step::title(step), times), step)
    }
}

#[cfg(test)]
pub(crate) mod tests;
