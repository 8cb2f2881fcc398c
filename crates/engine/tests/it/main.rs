//! The engine on real parts: a SQLite store, the in-process transport, local tools, and models that play scenarios.

mod agents;
mod lab;
mod recovery;
mod stopping;
