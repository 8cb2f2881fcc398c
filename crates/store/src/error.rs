//! Database errors as domain errors.

use remuda_domain::{Code, Error};

/// Maps what the database said. What may pass by itself is `unavailable`, everything else is our fault.
pub(crate) fn db(error: sqlx::Error) -> Error {
    let transient = match &error {
        sqlx::Error::Io(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed => true,
        // A connection that is cut off in the middle of a word, as when a server dies, shows as one of these.
        sqlx::Error::Protocol(_) | sqlx::Error::Tls(_) => true,
        sqlx::Error::Database(database) => database.code().is_some_and(|code| is_transient(&code)),
        _ => false,
    };
    if transient {
        return Error::unavailable("the database does not answer at the moment").with_source(error);
    }
    if is_duplicate(&error) {
        return Error::new(Code::AlreadyExists, "the same exists already").with_source(error);
    }
    Error::internal("the database refused a statement").with_source(error)
}

/// PostgreSQL: connection trouble, shutdown, no room, a lock or transaction that took too long, deadlock, serialization.
/// SQLite: busy, locked, disk full.
fn is_transient(code: &str) -> bool {
    matches!(code, "5" | "6" | "13" | "261" | "517" | "773" | "25006" | "25P03" | "55P03")
        || is_conflict(code)
        || ["08", "53", "57"].iter().any(|class| code.starts_with(class))
}

fn is_conflict(code: &str) -> bool {
    matches!(code, "40001" | "40P01")
}

/// Another transaction was quicker with something this one wanted.
#[derive(Debug, thiserror::Error)]
#[error("another transaction was quicker")]
struct Outrun;

/// An error that [`is_retryable`].
pub(crate) fn outrun() -> Error {
    Error::unavailable("the database is too busy at the moment").with_source(Outrun)
}

/// Whether the same transaction may simply be tried again at once.
pub(crate) fn is_retryable(error: &Error) -> bool {
    let Some(source) = std::error::Error::source(error) else {
        return false;
    };
    match source.downcast_ref::<sqlx::Error>() {
        Some(sqlx::Error::Database(database)) => database.code().is_some_and(|code| is_conflict(&code)),
        _ => source.is::<Outrun>(),
    }
}

/// Whether the statement failed because of a unique constraint.
pub(crate) fn is_duplicate(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(sqlx::error::DatabaseError::is_unique_violation)
}

/// A row that cannot be read: written by another version, or by hand.
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
