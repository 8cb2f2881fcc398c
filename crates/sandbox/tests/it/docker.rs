//! The Docker backend.
//!
//! Needs an engine: `cargo xtask test` finds one or starts a private one.

mod attacks;
mod daemon;
mod faults;
mod image;
mod lab;
mod life;
mod policy;
