//! Tests of the tasks on a real SQLite store, with the in-process transport or a real nats-server where that matters.

mod fixture;
mod gc;
mod leadership;
mod orphaned_tokens;
mod parked_runs;
mod reclaim_sessions;
mod slot_grants;
mod wake_sessions;
mod webhooks;
