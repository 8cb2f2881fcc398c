//! The promises, checked from outside: what callers, readers and tools saw must fit together.
//!
//! The checker is a pure function of a [`History`], so every kind of broken promise has a test with a history written by
//! hand. Where a server's clock matters it is believed only as far as the driver's own clock allows, so a fault that sets a
//! clock wrong is no violation.

mod cursors;
mod effects;
mod facts;
mod order;
mod runs;
#[cfg(test)]
mod tests;
mod verdict;

pub(crate) use self::{
    facts::Facts,
    verdict::{Verdict, Violation},
};
use crate::history::History;

/// Judges a test.
pub(crate) fn check(history: &History) -> Verdict {
    let facts = Facts::new(history);
    let mut verdict = Verdict::new(history);
    runs::check(&facts, &mut verdict);
    order::check(&facts, &mut verdict);
    effects::check(&facts, &mut verdict);
    cursors::check(&facts, &mut verdict);
    verdict
}
