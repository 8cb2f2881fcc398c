//! Maps database errors to domain errors.

use std::time::Duration;

use remuda_domain::{Code, Error};
use sqlx::error::DatabaseError;

/// Maps a database error. A full disk becomes `storage_full`, damage `storage_corrupt`, transient errors `unavailable`, unique violations
/// `already_exists`, everything else `internal`.
pub(crate) fn db(error: sqlx::Error) -> Error {
    match error.as_database_error().and_then(DatabaseError::code) {
        Some(code) if is_disk_full(&code) => return storage_full(error),
        Some(code) if is_corrupt(&code) => return storage_corrupt(error),
        _ => {}
    }
    let transient = match &error {
        sqlx::Error::Io(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed => true,
        // A connection that breaks in the middle of a message, for example because the server died, shows as one of
        // these.
        sqlx::Error::Protocol(_) | sqlx::Error::Tls(_) => true,
        sqlx::Error::Database(database) => database.code().is_some_and(|code| is_transient(&code)),
        _ => false,
    };
    if transient {
        return Error::unavailable("the database is unavailable").with_source(error);
    }
    if is_duplicate(&error) {
        return Error::new(Code::AlreadyExists, "it already exists").with_source(error);
    }
    Error::internal("the database rejected a statement").with_source(error)
}

/// When to try again if the disk is full.
const FULL_RETRY: Duration = Duration::from_secs(2);

/// A write that found no room on the disk.
pub(crate) fn storage_full(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(Code::StorageFull, "the database's disk is full").retry_after(FULL_RETRY).with_source(source)
}

/// PostgreSQL: disk full. SQLite, in which extended codes are used: full; the shared memory file cannot grow.
fn is_disk_full(code: &str) -> bool {
    matches!(code, "53100" | "13" | "4874")
}

/// A damaged database.
pub(crate) fn storage_corrupt(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    let message = "the database is corrupt: restore a backup, see docs/backup.md";
    Error::new(Code::StorageCorrupt, message).with_source(source)
}

/// PostgreSQL: data corrupted, index corrupted. SQLite: damaged, in some place; not a database.
pub(crate) fn is_corrupt(code: &str) -> bool {
    matches!(code, "XX001" | "XX002" | "11" | "267" | "523" | "779" | "26")
}

/// Maps an error of the connection that bypasses the driver.
pub(crate) fn raw_sqlite(error: rusqlite::Error) -> Error {
    let code = error.sqlite_error().map(|error| error.extended_code.to_string());
    match code {
        Some(code) if is_disk_full(&code) => return storage_full(error),
        Some(code) if is_corrupt(&code) => return storage_corrupt(error),
        _ => {}
    }
    Error::internal("the database rejected a statement").with_source(error)
}

/// PostgreSQL: connection failure, shutdown, insufficient resources, lock or transaction timeout, deadlock,
/// serialization failure, I/O error. SQLite: busy, locked, I/O error.
fn is_transient(code: &str) -> bool {
    matches!(code, "5" | "6" | "261" | "517" | "773" | "25006" | "25P03" | "55P03" | "58030")
        || is_conflict(code)
        || is_io_error(code)
        || ["08", "53", "57"].iter().any(|class| code.starts_with(class))
}

/// SQLite's I/O errors: 10, and in extended codes the lowest byte.
fn is_io_error(code: &str) -> bool {
    const IO_ERROR: u32 = 10;
    // The codes of PostgreSQL have five characters.
    code.len() < 5 && code.parse::<u32>().is_ok_and(|code| code & 0xff == IO_ERROR)
}

fn is_conflict(code: &str) -> bool {
    matches!(code, "40001" | "40P01")
}

/// A concurrent transaction changed something that this one depends on.
#[derive(Debug, thiserror::Error)]
#[error("conflict with a concurrent transaction")]
struct Conflict;

/// A conflict that [`is_retryable`].
pub(crate) fn conflict() -> Error {
    Error::unavailable("the database is too busy at the moment").with_source(Conflict)
}

/// Whether the same transaction may be retried immediately.
pub(crate) fn is_retryable(error: &Error) -> bool {
    let Some(source) = std::error::Error::source(error) else {
        return false;
    };
    match source.downcast_ref::<sqlx::Error>() {
        Some(sqlx::Error::Database(database)) => database.code().is_some_and(|code| is_conflict(&code)),
        _ => source.is::<Conflict>(),
    }
}

/// Whether the statement violated a unique constraint.
pub(crate) fn is_duplicate(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(DatabaseError::is_unique_violation)
}

/// A stored value that cannot be parsed: written by another version, or by hand.
pub(crate) fn corrupt(what: &str) -> Error {
    Error::new(Code::Internal, format!("a stored {what} cannot be read"))
}

pub(crate) fn json<T: serde::Serialize + ?Sized>(value: &T) -> Result<String, Error> {
    serde_json::to_string(value)
        .map_err(|error| Error::internal("a value cannot be stored").with_source(error))
}

pub(crate) fn parse<T: serde::de::DeserializeOwned>(what: &str, text: &str) -> Result<T, Error> {
    serde_json::from_str(text).map_err(|error| corrupt(what).with_source(error))
}
