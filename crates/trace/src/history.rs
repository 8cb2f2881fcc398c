//! The trace of a run as the store remembers it.

use remuda_domain::{
    Event, EventBody, Fence, Run, SessionId, Timestamp, run::ParkReason, step::Step, trace::SpanId,
};
use remuda_telemetry::spans::Span;

use crate::{AttemptEnd, RunTrace, run::fence_of, step};

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

/// What is known of a run until `now`, from its steps and from those of its events that are kept, in their order.
#[must_use]
pub fn history(run: &Run, steps: &[Step], events: &[Event], now: Timestamp) -> Vec<Chapter> {
    let mut telling = Telling {
        run,
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
    trace: RunTrace,
    now: Timestamp,
    /// What the run waits for, and since when.
    waiting: Option<(Option<ParkReason>, Timestamp)>,
    /// Who works on it for which time, and since when.
    working: Option<(Fence, u32, Timestamp)>,
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
                self.end_wait(*attempt, at, false);
                self.working = Some((fence_of(self.run, *worker, i64::from(*attempt)), *attempt, at));
            }
            EventBody::RunHandedOver { .. } => self.rest(AttemptEnd::HandedOver, None, at),
            EventBody::RunAttemptLost { .. } => self.rest(AttemptEnd::Lost, None, at),
            EventBody::RunParked { reason } => self.rest(AttemptEnd::Parked(*reason), Some(*reason), at),
            EventBody::RunResumed => {
                let next = self.attempts.len() + 1;
                self.end_wait(u32::try_from(next).unwrap_or(u32::MAX), at, false);
                self.waiting = Some((None, at));
            }
            body => {
                if let Some(state) = body.terminal_state() {
                    self.end_attempt(AttemptEnd::Ended(state), at, false);
                    self.end_wait(u32::MAX, at, false);
                }
            }
        }
    }

    /// The run is nobody's.
    fn rest(&mut self, end: AttemptEnd, reason: Option<ParkReason>, at: Timestamp) {
        self.end_attempt(end, at, false);
        self.waiting = Some((reason, at));
    }

    fn end_wait(&mut self, attempt: u32, at: Timestamp, open: bool) {
        let Some((reason, since)) = self.waiting.take() else { return };
        let mut span = self.trace.wait(i64::from(attempt), reason, (since, at));
        // The same attempt may have waited for one thing and then for a worker.
        if self.chapters.iter().any(|it| it.span.context.span == span.context.span) {
            span.context.span = SpanId::random();
        }
        self.add(span, open);
    }

    fn end_attempt(&mut self, end: AttemptEnd, at: Timestamp, open: bool) {
        let Some((fence, number, from)) = self.working.take() else { return };
        let span = self.trace.attempted(&fence, number, None, end, (from, at));
        self.attempts.push(Attempt { span: span.clone(), from });
        self.add(span, open);
    }

    /// What goes on, goes on until now.
    fn conclude(&mut self) {
        let (now, open) = (self.now, self.run.finished_at.is_none());
        let until = self.run.finished_at.unwrap_or(now);
        self.end_attempt(AttemptEnd::Ended(self.run.state), until, open);
        self.end_wait(u32::MAX, until, open);
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
