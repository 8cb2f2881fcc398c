//! Tests of the engine with a SQLite store, the in-memory transport, local tools, and scripted models.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod agent_and_model_choice;
mod agent_loop;
mod agent_switch;
mod approvals;
mod background_children;
mod budgets;
mod cancel_and_timeout;
mod compaction;
mod delegation;
mod empty_responses;
mod events;
mod gate;
mod hand_over;
mod harness;
mod inspect;
mod live_output;
mod max_steps;
mod model_failures;
mod model_server;
mod parallel_calls;
mod prompt;
mod recovery;
mod reminders;
mod repeated_calls;
mod request_record;
mod resumed_tasks;
mod sessions;
mod skills;
mod stopping_transport;
mod tools_run_rules;
mod toolsets;
mod toy_tool;
mod transcript_repair;
