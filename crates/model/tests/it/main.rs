//! Explores the protocol: whole, and with one rule broken at a time.

#![expect(clippy::print_stdout, reason = "how much was explored, and the counterexamples, are results")]

mod mutations;
mod promises;
