//! The text so far of messages under way and of the output of running calls.

use std::{collections::VecDeque, sync::Arc};

use remuda_domain::{
    Event, EventBody, RunId,
    event::{Delta, DeltaKind, DeltaOf},
};

use crate::shared_event::{Shared, SharedDelta};

/// Maximum text kept per session. If exceeded, the beginning is dropped.
const MAX_BYTES: usize = 1024 * 1024;
/// Maximum number of texts per session. A session produces one message at a time.
const MAX_TEXTS: usize = 16;
/// How often missing text is requested before the rest is delivered without it.
const MAX_RESEND_REQUESTS: u8 = 3;
/// Number of completed messages and calls to remember. More than can have deltas in transit.
const MAX_COMPLETED: usize = 512;

/// Result of applying a delta.
#[derive(Debug, PartialEq)]
pub(super) enum DeltaOutcome {
    /// To be sent to readers.
    New(Delta),
    /// Known already, or obsolete.
    Ignored,
    /// Something before it is missing: the worker has to resend it.
    Missing,
}

#[derive(Default)]
pub(super) struct PartialMessages {
    texts: VecDeque<PartialText>,
    completed: VecDeque<DeltaOf>,
    /// What a new reader gets; created on demand.
    snapshot: Option<Arc<[SharedDelta]>>,
}

/// One kind of text of one message or call.
struct PartialText {
    run: RunId,
    of: DeltaOf,
    kind: DeltaKind,
    /// Offset of the known text.
    from: u64,
    text: String,
    /// How often missing text was requested.
    resend_requests: u8,
    awaiting_resend: bool,
}

impl PartialMessages {
    /// Applies a delta. Deltas come in order. One that overlaps the known text is a resend, or the model started
    /// over.
    pub(super) fn apply(&mut self, delta: Delta) -> DeltaOutcome {
        if self.completed.contains(&delta.of) {
            return DeltaOutcome::Ignored;
        }
        let outcome = self.text_entry(&delta).apply(delta);
        if outcome != DeltaOutcome::Missing {
            self.snapshot = None;
            self.enforce_limit();
        }
        outcome
    }

    /// Applies an event: the text of a completed message is in the event.
    pub(super) fn apply_event(&mut self, event: &Event) {
        match &event.body {
            EventBody::MessageCompleted { message, .. } => self.complete(DeltaOf::Message(*message)),
            EventBody::ToolCompleted(outcome) | EventBody::ToolFailed(outcome) => {
                self.complete(DeltaOf::Call(outcome.id));
            }
            EventBody::ModelFailed { message, .. } => {
                self.forget(|text_entry| text_entry.of == DeltaOf::Message(*message));
            }
            body if body.terminal_state().is_some() => {
                self.forget(|text_entry| Some(text_entry.run) == event.run)
            }
            _ => {}
        }
    }

    /// A resend of missing text was requested.
    pub(super) fn resend_requested(&mut self) {
        let waiting = self.texts.iter_mut().filter(|text_entry| text_entry.awaiting_resend);
        waiting.for_each(|text_entry| text_entry.resend_requests += 1);
    }

    /// For a new reader: all known text, each as one delta.
    pub(super) fn snapshot(&mut self) -> Arc<[SharedDelta]> {
        let texts = &self.texts;
        let deltas = || {
            texts.iter().filter(|text_entry| !text_entry.text.is_empty()).map(PartialText::to_delta).collect()
        };
        Arc::clone(self.snapshot.get_or_insert_with(deltas))
    }

    fn complete(&mut self, of: DeltaOf) {
        if self.completed.len() == MAX_COMPLETED {
            self.completed.pop_front();
        }
        self.completed.push_back(of);
        self.forget(|text_entry| text_entry.of == of);
    }

    fn forget(&mut self, ended: impl Fn(&PartialText) -> bool) {
        let before = self.texts.len();
        self.texts.retain(|text_entry| !ended(text_entry));
        if self.texts.len() < before {
            self.snapshot = None;
        }
    }

    fn text_entry(&mut self, delta: &Delta) -> &mut PartialText {
        let is_it = |text_entry: &PartialText| (text_entry.of, text_entry.kind) == (delta.of, delta.kind);
        let index = self.texts.iter().position(is_it).unwrap_or_else(|| {
            if self.texts.len() == MAX_TEXTS {
                self.texts.pop_front();
            }
            self.texts.push_back(PartialText {
                run: delta.run,
                of: delta.of,
                kind: delta.kind,
                from: 0,
                text: String::new(),
                resend_requests: 0,
                awaiting_resend: false,
            });
            self.texts.len() - 1
        });
        &mut self.texts[index]
    }

    fn enforce_limit(&mut self) {
        let bytes = |texts: &VecDeque<PartialText>| {
            texts.iter().map(|text_entry| text_entry.text.len()).sum::<usize>()
        };
        while bytes(&self.texts) > MAX_BYTES {
            let Some(longest) = self.texts.iter_mut().max_by_key(|text_entry| text_entry.text.len()) else {
                return;
            };
            longest.drop_first_half();
        }
    }
}

impl PartialText {
    fn end(&self) -> u64 {
        self.from + length(&self.text)
    }

    fn apply(&mut self, delta: Delta) -> DeltaOutcome {
        let end = self.end();
        // Skipped output is never resent; the result has it.
        if delta.offset > end && self.resend_requests < MAX_RESEND_REQUESTS && delta.message().is_some() {
            self.awaiting_resend = true;
            return DeltaOutcome::Missing;
        }
        (self.resend_requests, self.awaiting_resend) = (0, false);
        // A resend contains all earlier text. So a delta that ends earlier, or differs, is a new start.
        let continues = delta.offset <= end
            && delta.offset + length(&delta.text) >= end
            && self.is_consistent_with(&delta);
        if !continues {
            self.restart(&delta);
            return DeltaOutcome::New(delta);
        }
        if delta.offset < self.from {
            // Readers may lack what was missing here.
            (self.from, self.text) = (delta.offset, delta.text.clone());
            return DeltaOutcome::New(delta);
        }
        let weak = usize::try_from(end - delta.offset).unwrap_or(usize::MAX);
        let new = delta.text.get(weak..).unwrap_or_default();
        if new.is_empty() {
            return DeltaOutcome::Ignored;
        }
        self.text.push_str(new);
        DeltaOutcome::New(Delta { offset: end, text: new.to_owned(), ..delta })
    }

    /// Whether a delta agrees with the known text as far as both reach.
    fn is_consistent_with(&self, delta: &Delta) -> bool {
        let skipped = |longer: u64, shorter: u64| usize::try_from(longer.saturating_sub(shorter)).ok();
        let ours = skipped(delta.offset, self.from).and_then(|skip| self.text.as_bytes().get(skip..));
        let theirs = skipped(self.from, delta.offset).and_then(|skip| delta.text.as_bytes().get(skip..));
        let (Some(ours), Some(theirs)) = (ours, theirs) else { return false };
        theirs.starts_with(ours)
    }

    /// Replaces the text after the delta's offset.
    fn restart(&mut self, delta: &Delta) {
        let kept = delta.offset.checked_sub(self.from).and_then(|kept| usize::try_from(kept).ok());
        match kept {
            Some(kept) if self.text.is_char_boundary(kept) => {
                self.text.truncate(kept);
                self.text.push_str(&delta.text);
            }
            _ => (self.from, self.text) = (delta.offset, delta.text.clone()),
        }
    }

    fn drop_first_half(&mut self) {
        let half = self.text.ceil_char_boundary(self.text.len().div_ceil(2));
        self.text.drain(..half);
        self.from += u64::try_from(half).unwrap_or(u64::MAX);
    }

    fn to_delta(&self) -> SharedDelta {
        let (run, of, kind) = (self.run, self.of, self.kind);
        Arc::new(Shared::new(Delta { run, of, kind, offset: self.from, text: self.text.clone() }))
    }
}

fn length(text: &str) -> u64 {
    u64::try_from(text.len()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
