//! The guarantee checker: what callers, readers and tools observed must be consistent.
//!
//! The checker is a pure function of a [`History`], so every kind of violation has a test with a handwritten history. Server
//! times are used only if they are plausible by the driver's own clock, so a fault that sets a clock wrong causes no violation.

mod cursors;
mod effects;
mod history_index;
mod order;
mod runs;
#[cfg(test)]
mod tests;
mod verdict;

pub(crate) use self::{
    history_index::HistoryIndex,
    verdict::{Verdict, Violation},
};
use crate::observed_history::History;

/// Checks the history of a test.
pub(crate) fn check(history: &History) -> Verdict {
    let index = HistoryIndex::new(history);
    let mut verdict = Verdict::new(history);
    runs::check(&index, &mut verdict);
    order::check(&index, &mut verdict);
    effects::check(&index, &mut verdict);
    cursors::check(&index, &mut verdict);
    verdict
}
