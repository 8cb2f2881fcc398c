//! Explores the protocol, as it is and with one rule broken at a time.

#![expect(clippy::print_stdout, reason = "how much was explored, and the counterexamples, are results")]

mod invariants;
mod mutations;
