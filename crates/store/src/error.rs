//! Maps database errors to domain errors.

use remuda_domain::{Code, Error};

/// Maps a database error. Transient errors become `unavailable`, unique violations `already_exists`, everything else
/// `internal`.
pub(crate) fn db(error: sqlx::Error) -> Error {
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

/// PostgreSQL: connection failure, shutdown, insufficient resources, lock or transaction timeout, deadlock,
/// serialization failure. SQLite: busy, locked, disk full.
fn is_transient(code: &str) -> bool {
    matches!(code, "5" | "6" | "13" | "261" | "517" | "773" | "25006" | "25P03" | "55P03")
        || is_conflict(code)
        || ["08", "53", "57"].iter().any(|class| code.starts_with(class))
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
    error.as_database_error().is_some_and(sqlx::error::DatabaseError::is_unique_violation)
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
