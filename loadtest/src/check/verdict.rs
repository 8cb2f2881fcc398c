//! The result of the checker: counts and descriptions of violations.

use std::collections::BTreeMap;

use crate::observed_history::{History, SubmitOutcome};

/// Messages that are kept. The first ones usually explain the rest.
const MAX_MESSAGES: usize = 20;

/// A kind of violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Violation {
    /// An accepted run without an end.
    Lost,
    /// Two ends of a run, or two runs of one submit.
    Duplicated,
    /// Runs of a session that did not start in submission order.
    Order,
    /// Two runs of a session, or two calls that are not parallel, at the same time.
    Overlap,
    /// A call with side effects that was executed again.
    Reexecuted,
    /// A reported outcome that the tools' journal contradicts.
    Dishonest,
    /// A tool that outlived its run or its worker.
    Orphan,
    /// An event that a reader missed or got twice, or that differs between readers.
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
    /// The number of ended runs by state.
    pub(crate) ends: BTreeMap<&'static str, u64>,
    counts: BTreeMap<Violation, u64>,
    messages: Vec<(Violation, String)>,
}

impl Verdict {
    pub(super) fn new(history: &History) -> Self {
        let accepted =
            history.submits.iter().filter(|submit| matches!(submit.outcome, SubmitOutcome::Accepted { .. }));
        Self { submitted: history.submits.len() as u64, accepted: accepted.count() as u64, ..Self::default() }
    }

    /// Counts a violation and keeps its message.
    pub(crate) fn record(&mut self, violation: Violation, message: String) {
        *self.counts.entry(violation).or_default() += 1;
        if self.messages.len() < MAX_MESSAGES {
            self.messages.push((violation, message));
        }
    }

    pub(crate) fn count(&self, violation: Violation) -> u64 {
        self.counts.get(&violation).copied().unwrap_or_default()
    }

    pub(crate) fn total(&self) -> u64 {
        self.counts.values().sum()
    }

    /// The messages of the first violations.
    pub(crate) fn messages(&self) -> Vec<String> {
        let describe =
            |(violation, message): &(Violation, String)| format!("{}: {message}", violation.name());
        self.messages.iter().map(describe).collect()
    }

    /// The share of submits that were accepted.
    pub(crate) fn accepted_ratio(&self) -> f64 {
        if self.submitted == 0 { 0.0 } else { self.accepted as f64 / self.submitted as f64 }
    }
}
