//! The engine on real parts: a SQLite store, the in-process transport, local tools, and models that play scenarios.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod agents;
mod approvals;
mod background;
mod budgets;
mod calls;
mod choosing;
mod context;
mod delegation;
mod drain;
mod events;
mod failures;
mod gate;
mod lab;
mod look;
mod max_steps;
mod model_server;
mod printing;
mod prompt;
mod record;
mod recovery;
mod reminders;
mod repair;
mod repeats;
mod sessions;
mod silence;
mod skills;
mod stopping;
mod stops;
mod switching;
mod tasks;
mod toolsets;
