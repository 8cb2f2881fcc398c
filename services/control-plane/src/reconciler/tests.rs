//! The tasks against a real SQLite store, the in-process transport, and a real nats-server where that matters.

mod collecting;
mod cooperating;
mod delivering;
mod granting;
mod lab;
mod leading;
mod orphans;
mod taking_back;
mod waking;
