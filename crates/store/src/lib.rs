//! The durable store: sessions, runs, ownership, events, budgets and webhooks, on PostgreSQL or SQLite.
//!
//! [`Store`] has two implementations, PostgreSQL for production and SQLite for the embedded mode. One conformance suite
//! (`tests/`) runs against both.
//!
//! Guarantees:
//! - When a call returns `Ok`, its effect is committed and durable. When a call fails with `unavailable`, the effect may
//!   or may not have happened; repeating the call with the same ids, key or fence is safe. The same holds for
//!   `storage_full`: a transaction that finds no room on the disk has no effect, but a call may need several.
//! - Dropping the future of a call leaves neither a partial change nor an open transaction.
//! - Every call names the tenant it acts for and sees only that tenant's rows. Exceptions, such as [`Fleet`], say that
//!   they act for the system.
//!
//! The store contains no protocol rules. It loads a [`Head`](remuda_domain::Head) under a lock, lets the domain decide,
//! and writes the result, all in one transaction. It publishes nothing: it returns events and session changes, and the
//! caller publishes them.
//!
//! # Layout
//!
//! The files in `shared/` contain everything that both SQL dialects have in common. They are compiled twice, as
//! children of [`postgres`] and of [`sqlite`], against that module's `dialect`, which contains the differences: row
//! locks and multi-row statements.

#![expect(clippy::duplicate_mod, reason = "the files in `shared/` are compiled once per dialect")]

#[macro_use]
mod written_row;
#[macro_use]
mod rows;
mod coalesce;
mod connect;
mod disk_room;
mod error;
mod meters;
mod pending_counters;
mod postgres;
mod row_writes;
mod runnable_queue;
mod shared_cache;
mod shared_text;
mod sqlite;
mod time;
mod traits;

pub use connect::{Backend, Options, SchemaStatus, connect, migrate, schema_status};
pub use shared_cache::SharedCache;
pub use traits::*;
