//! What is being said in a session: the text so far of messages that are not complete, and of calls that run.

use std::{collections::VecDeque, sync::Arc};

use remuda_domain::{
    Event, EventBody, RunId,
    event::{Delta, DeltaKind, DeltaOf},
};

use crate::shared::{Shared, SharedDelta};

/// Text that is kept of one session. Of more, the end is.
const MAX_BYTES: usize = 1024 * 1024;
/// Texts that are kept of one session; a session says one message at a time.
const MAX_STRANDS: usize = 16;
/// How often it is asked for what is missing before the rest is told without it.
const MAX_ASKS: u8 = 3;
/// Messages and calls that are known to be complete. More than can have pieces on their way.
const REMEMBERED: usize = 512;

/// What a piece turned out to be.
#[derive(Debug, PartialEq)]
pub(super) enum Heard {
    /// To be told.
    News(Delta),
    /// It is known already, or of no use any more.
    Nothing,
    /// Something before it is missing: it has to be told again.
    Gap,
}

#[derive(Default)]
pub(super) struct Speech {
    strands: VecDeque<Strand>,
    completed: VecDeque<DeltaOf>,
    /// What a new reader is told, made when one comes.
    so_far: Option<Arc<[SharedDelta]>>,
}

/// One kind of text of one message or call.
struct Strand {
    run: RunId,
    of: DeltaOf,
    kind: DeltaKind,
    /// Where the text begins that is known.
    from: u64,
    text: String,
    /// How often it was asked for what is missing.
    asked: u8,
    waits: bool,
}

impl Speech {
    /// Takes a piece. Pieces come in order; one that overlaps with what is known is a retelling, or a new beginning.
    pub(super) fn hear(&mut self, delta: Delta) -> Heard {
        if self.completed.contains(&delta.of) {
            return Heard::Nothing;
        }
        let heard = self.strand(&delta).hear(delta);
        if heard != Heard::Gap {
            self.so_far = None;
            self.keep_within_bounds();
        }
        heard
    }

    /// Takes note of what an event says of messages: the text of a complete one is in the event.
    pub(super) fn note(&mut self, event: &Event) {
        match &event.body {
            EventBody::MessageCompleted { message, .. } => self.complete(DeltaOf::Message(*message)),
            EventBody::ToolCompleted(outcome) | EventBody::ToolFailed(outcome) => {
                self.complete(DeltaOf::Call(outcome.id));
            }
            EventBody::ModelFailed { message, .. } => {
                self.forget(|strand| strand.of == DeltaOf::Message(*message));
            }
            body if body.terminal_state().is_some() => self.forget(|strand| Some(strand.run) == event.run),
            _ => {}
        }
    }

    /// It was asked for what is missing.
    pub(super) fn note_asked(&mut self) {
        let waiting = self.strands.iter_mut().filter(|strand| strand.waits);
        waiting.for_each(|strand| strand.asked += 1);
    }

    /// For who begins to listen: everything that is known, each text as one piece.
    pub(super) fn so_far(&mut self) -> Arc<[SharedDelta]> {
        let strands = &self.strands;
        let told = || strands.iter().filter(|strand| !strand.text.is_empty()).map(Strand::told).collect();
        Arc::clone(self.so_far.get_or_insert_with(told))
    }

    fn complete(&mut self, of: DeltaOf) {
        if self.completed.len() == REMEMBERED {
            self.completed.pop_front();
        }
        self.completed.push_back(of);
        self.forget(|strand| strand.of == of);
    }

    fn forget(&mut self, over: impl Fn(&Strand) -> bool) {
        let before = self.strands.len();
        self.strands.retain(|strand| !over(strand));
        if self.strands.len() < before {
            self.so_far = None;
        }
    }

    fn strand(&mut self, delta: &Delta) -> &mut Strand {
        let is_it = |strand: &Strand| (strand.of, strand.kind) == (delta.of, delta.kind);
        let index = self.strands.iter().position(is_it).unwrap_or_else(|| {
            if self.strands.len() == MAX_STRANDS {
                self.strands.pop_front();
            }
            self.strands.push_back(Strand {
                run: delta.run,
                of: delta.of,
                kind: delta.kind,
                from: 0,
                text: String::new(),
                asked: 0,
                waits: false,
            });
            self.strands.len() - 1
        });
        &mut self.strands[index]
    }

    fn keep_within_bounds(&mut self) {
        let bytes =
            |strands: &VecDeque<Strand>| strands.iter().map(|strand| strand.text.len()).sum::<usize>();
        while bytes(&self.strands) > MAX_BYTES {
            let Some(longest) = self.strands.iter_mut().max_by_key(|strand| strand.text.len()) else {
                return;
            };
            longest.forget_half();
        }
    }
}

impl Strand {
    fn end(&self) -> u64 {
        self.from + length(&self.text)
    }

    fn hear(&mut self, delta: Delta) -> Heard {
        let end = self.end();
        // Output that was left out is told by nobody; the result has it.
        if delta.offset > end && self.asked < MAX_ASKS && delta.message().is_some() {
            self.waits = true;
            return Heard::Gap;
        }
        (self.asked, self.waits) = (0, false);
        // A retelling holds all that was told before, so what ends earlier, or differs, is a new beginning.
        let goes_on = delta.offset <= end && delta.offset + length(&delta.text) >= end && self.agrees(&delta);
        if !goes_on {
            self.begin_anew(&delta);
            return Heard::News(delta);
        }
        if delta.offset < self.from {
            // Readers may lack what was missing here.
            (self.from, self.text) = (delta.offset, delta.text.clone());
            return Heard::News(delta);
        }
        let known = usize::try_from(end - delta.offset).unwrap_or(usize::MAX);
        let new = delta.text.get(known..).unwrap_or_default();
        if new.is_empty() {
            return Heard::Nothing;
        }
        self.text.push_str(new);
        Heard::News(Delta { offset: end, text: new.to_owned(), ..delta })
    }

    /// Whether a piece says the same as what is known, as far as both reach.
    fn agrees(&self, delta: &Delta) -> bool {
        let skipped = |longer: u64, shorter: u64| usize::try_from(longer.saturating_sub(shorter)).ok();
        let ours = skipped(delta.offset, self.from).and_then(|skip| self.text.as_bytes().get(skip..));
        let theirs = skipped(self.from, delta.offset).and_then(|skip| delta.text.as_bytes().get(skip..));
        let (Some(ours), Some(theirs)) = (ours, theirs) else { return false };
        theirs.starts_with(ours)
    }

    /// What was said after the piece's offset is not so any more.
    fn begin_anew(&mut self, delta: &Delta) {
        let kept = delta.offset.checked_sub(self.from).and_then(|kept| usize::try_from(kept).ok());
        match kept {
            Some(kept) if self.text.is_char_boundary(kept) => {
                self.text.truncate(kept);
                self.text.push_str(&delta.text);
            }
            _ => (self.from, self.text) = (delta.offset, delta.text.clone()),
        }
    }

    fn forget_half(&mut self) {
        let half = self.text.ceil_char_boundary(self.text.len().div_ceil(2));
        self.text.drain(..half);
        self.from += u64::try_from(half).unwrap_or(u64::MAX);
    }

    fn told(&self) -> SharedDelta {
        let (run, of, kind) = (self.run, self.of, self.kind);
        Arc::new(Shared::new(Delta { run, of, kind, offset: self.from, text: self.text.clone() }))
    }
}

fn length(text: &str) -> u64 {
    u64::try_from(text.len()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
