//! Event chunks by primary key: session and last cursor.

use remuda_domain::error::Result;
use sqlx::{query, query_as, query_scalar};
use uuid::Uuid;

use super::dialect::Connection;
use crate::{error::db, rows::ChunkRow};

/// The oldest chunk of the session `s`.
pub(super) const OLDEST: &str =
    "(SELECT e.chunk FROM events e WHERE e.session_id = s.id ORDER BY e.last_cursor LIMIT 1)";

/// The newest chunk of the session `s`.
pub(super) const NEWEST: &str =
    "(SELECT e.chunk FROM events e WHERE e.session_id = s.id ORDER BY e.last_cursor DESC LIMIT 1)";

/// Deletes all chunks of sessions.
pub(super) const DELETE_ALL: &str = "DELETE FROM events WHERE session_id {among}";

/// Loads chunks with events after a cursor, in order. Each has at least one event, so `count` chunks have at least
/// `count` events.
pub(super) async fn after(
    connection: &mut Connection,
    session: Uuid,
    after: i64,
    count: i64,
) -> Result<Vec<ChunkRow>> {
    query_as(
        "SELECT last_cursor, chunk FROM events WHERE session_id = $1 AND last_cursor > $2 ORDER BY last_cursor LIMIT $3",
    )
    .bind(session)
    .bind(after)
    .bind(count)
    .fetch_all(connection)
    .await
    .map_err(db)
}

/// The last cursor of the `count` oldest chunks, if there are more.
pub(super) async fn end_of_oldest(
    connection: &mut Connection,
    session: Uuid,
    count: i64,
) -> Result<Option<i64>> {
    query_scalar(
        "SELECT last_cursor FROM events WHERE session_id = $1 ORDER BY last_cursor LIMIT 1 OFFSET $2",
    )
    .bind(session)
    .bind(count)
    .fetch_optional(connection)
    .await
    .map_err(db)
}

/// Deletes the chunks up to a cursor.
pub(super) async fn delete_through(connection: &mut Connection, session: Uuid, cursor: i64) -> Result<u64> {
    let done = query("DELETE FROM events WHERE session_id = $1 AND last_cursor <= $2")
        .bind(session)
        .bind(cursor)
        .execute(connection)
        .await
        .map_err(db)?;
    Ok(done.rows_affected())
}
