//! The truth: what was accepted, who owns what, what happened.
//!
//! [`Store`] has two implementations, PostgreSQL for production and SQLite for the embedded mode, and one
//! conformance suite (`tests/`) that both pass. Rules are not written here: a store loads a
//! [`Head`](remuda_domain::Head) under a lock, lets the domain decide, and writes the result, all in one transaction.
//!
//! What a caller may rely on:
//! - When a call returns `Ok`, its effect is committed and durable. When it fails with `unavailable`, the effect may
//!   or may not have happened; repeating it with the same ids, key or fence is safe.
//! - Dropping the future of a call never leaves a half-done change or an open transaction.
//! - Every call names the tenant it acts for; rows of other tenants do not exist for it. Calls of the fleet itself
//!   ([`Fleet`]) are the exception and say so.
//!
//! # Layout
//!
//! The files in `shared/` hold everything that reads the same in both dialects of SQL. They are compiled twice, as
//! children of [`postgres`] and of [`sqlite`], against that module's `dialect`, which holds what differs: how rows are
//! locked, and how many rows are written in one statement.

#![expect(clippy::duplicate_mod, reason = "the files in `shared/` are compiled once per dialect")]

#[macro_use]
mod rows;
mod coalesce;
mod connect;
mod error;
mod kept;
mod line;
mod meters;
mod parcel;
mod post;
mod postgres;
mod sqlite;
mod tally;
mod time;
mod traits;
mod written;

pub use connect::{Backend, Options, SchemaStatus, connect, migrate, schema_status};
pub use kept::Kept;
pub use parcel::{GRANT_AGE, Parcel};
pub use traits::*;
