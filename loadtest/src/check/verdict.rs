//! What the checker found.

use std::collections::BTreeMap;

use crate::history::{Answer, History};

/// Sentences that are kept. The first ones explain the rest.
const MAX_SENTENCES: usize = 20;

/// A kind of broken promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Violation {
    /// An accepted run without an end.
    Lost,
    /// Two ends of a run, or two runs of a submit.
    Duplicated,
    /// Runs of a session that did not start in the order of their submission.
    Order,
    /// Two runs of a session, or two calls that are not parallel, at the same time.
    Overlap,
    /// A call with side effects that was executed again.
    Reexecuted,
    /// An answer that the journal of the tools contradicts.
    Dishonest,
    /// Something of a run that outlived it, or its owner.
    Orphan,
    /// An event that a reader missed, got twice, or that two readers know differently.
    CursorHole,
}

impl Violation {
    pub(crate) const ALL: [Self; 8] = [
        Self::Lost,
        Self::Duplicated,
        Self::Order,
        Self::Overlap,
        Self::Reexecuted,
        Self::Dishonest,
        Self::Orphan,
        Self::CursorHole,
    ];

    /// The name in reports.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Duplicated => "duplicated",
            Self::Order => "order_violations",
            Self::Overlap => "overlaps",
            Self::Reexecuted => "reexecuted",
            Self::Dishonest => "dishonest",
            Self::Orphan => "orphans",
            Self::CursorHole => "cursor_holes",
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) submitted: u64,
    pub(crate) accepted: u64,
    pub(crate) terminal: u64,
    /// How runs ended: state and number.
    pub(crate) ends: BTreeMap<&'static str, u64>,
    counts: BTreeMap<Violation, u64>,
    sentences: Vec<(Violation, String)>,
}

impl Verdict {
    pub(super) fn new(history: &History) -> Self {
        let accepted =
            history.submits.iter().filter(|submit| matches!(submit.answer, Answer::Accepted { .. }));
        Self { submitted: history.submits.len() as u64, accepted: accepted.count() as u64, ..Self::default() }
    }

    /// Counts a violation, and keeps what is to be said about it.
    pub(crate) fn found(&mut self, violation: Violation, sentence: String) {
        *self.counts.entry(violation).or_default() += 1;
        if self.sentences.len() < MAX_SENTENCES {
            self.sentences.push((violation, sentence));
        }
    }

    pub(crate) fn count(&self, violation: Violation) -> u64 {
        self.counts.get(&violation).copied().unwrap_or_default()
    }

    pub(crate) fn total(&self) -> u64 {
        self.counts.values().sum()
    }

    /// One sentence for each of the first violations.
    pub(crate) fn sentences(&self) -> Vec<String> {
        let say = |(violation, sentence): &(Violation, String)| format!("{}: {sentence}", violation.name());
        self.sentences.iter().map(say).collect()
    }

    /// The share of submits that were accepted.
    pub(crate) fn accepted_ratio(&self) -> f64 {
        if self.submitted == 0 { 0.0 } else { self.accepted as f64 / self.submitted as f64 }
    }
}
