//! Event chunks as a linked list: each chunk names the previous one of its session (migration 0013).
//!
//! ```text
//!  session ── last_chunk ──► 5 ──► 4 ──► 3 ──► 2 ──► 1        towards the beginning
//!                                  ▲ landmark, in an index: one in about 64 events
//! ```
//!
//! Appending therefore touches only the page of the session and the last page of the table. A reader starts at the
//! first landmark after the range it reads, or at the end of the list, and walks back.

use remuda_domain::error::Result;
use sqlx::{query, query_as, query_scalar};
use uuid::Uuid;

use super::dialect::Connection;
use crate::{error::db, rows::ChunkRow};

/// A chunk is a landmark if its cursors pass a multiple of this.
pub(super) const LANDMARK_EVERY: i64 = 64;

/// CTE `back`: the chunks of a session from a given chunk back to the beginning. The referenced row may be deleted, or
/// its id reused.
macro_rules! walk_back {
    ($session:literal, $from:expr, $down_to:expr) => {
        concat!(
            "WITH RECURSIVE back (id, last_cursor, previous) AS (SELECT e.id, e.last_cursor, e.previous FROM events e \
             WHERE e.session_id = ",
            $session,
            " AND e.id = ",
            $from,
            " UNION ALL SELECT e.id, e.last_cursor, e.previous FROM back b CROSS JOIN events e ON e.id = b.previous \
             WHERE e.session_id = ",
            $session,
            " AND e.last_cursor < b.last_cursor",
            $down_to,
            ") "
        )
    };
}

/// The first landmark of the session `$1` at or after a cursor, or its last chunk.
macro_rules! landmark_from {
    ($cursor:literal) => {
        concat!(
            "coalesce((SELECT l.id FROM events l WHERE l.session_id = $1 AND l.landmark = 1 AND l.last_cursor >= ",
            $cursor,
            " ORDER BY l.last_cursor LIMIT 1), (SELECT s.last_chunk FROM sessions s WHERE s.id = $1))"
        )
    };
}

/// The oldest chunk of the session `s`.
pub(super) const OLDEST: &str = concat!(
    "(",
    walk_back!(
        "s.id",
        "coalesce((SELECT l.id FROM events l WHERE l.session_id = s.id AND l.landmark = 1 ORDER BY l.last_cursor LIMIT 1), s.last_chunk)",
        ""
    ),
    "SELECT e.chunk FROM back JOIN events e ON e.id = back.id ORDER BY back.last_cursor LIMIT 1)"
);

/// The newest chunk of the session `s`.
pub(super) const NEWEST: &str =
    "(SELECT e.chunk FROM events e WHERE e.id = s.last_chunk AND e.session_id = s.id)";

/// Deletes all chunks of sessions, whose rows must still exist.
pub(super) const DELETE_ALL: &str = "DELETE FROM events WHERE id IN \
     (WITH RECURSIVE back (id, session_id, last_cursor, previous) AS (SELECT e.id, e.session_id, e.last_cursor, e.previous \
     FROM sessions s CROSS JOIN events e ON e.id = s.last_chunk AND e.session_id = s.id WHERE s.id {among} \
     UNION ALL SELECT e.id, e.session_id, e.last_cursor, e.previous FROM back b CROSS JOIN events e ON e.id = b.previous \
     WHERE e.session_id = b.session_id AND e.last_cursor < b.last_cursor) SELECT id FROM back)";

/// Loads chunks with events after a cursor, in order; at least one if there is any. They contain about `count` events,
/// unless old ones were trimmed.
pub(super) async fn after(
    connection: &mut Connection,
    session: Uuid,
    after: i64,
    count: i64,
) -> Result<Vec<ChunkRow>> {
    query_as(concat!(
        walk_back!("$1", landmark_from!("$3"), " AND e.last_cursor > $2"),
        "SELECT e.last_cursor, e.chunk FROM back JOIN events e ON e.id = back.id WHERE back.last_cursor > $2 ORDER BY back.last_cursor"
    ))
    .bind(session)
    .bind(after)
    .bind(after.saturating_add(count))
    .fetch_all(connection)
    .await
    .map_err(db)
}

/// The last cursor of about the `count` oldest chunks, if there are more.
pub(super) async fn end_of_oldest(
    connection: &mut Connection,
    session: Uuid,
    count: i64,
) -> Result<Option<i64>> {
    query_scalar(
        "SELECT last_cursor FROM events WHERE session_id = $1 AND landmark = 1 ORDER BY last_cursor LIMIT 1 OFFSET $2",
    )
    .bind(session)
    .bind(count / LANDMARK_EVERY)
    .fetch_optional(connection)
    .await
    .map_err(db)
}

/// Deletes the chunks up to a cursor.
pub(super) async fn delete_through(connection: &mut Connection, session: Uuid, cursor: i64) -> Result<u64> {
    let done = query(concat!(
        "DELETE FROM events WHERE id IN (",
        walk_back!("$1", landmark_from!("$2"), ""),
        "SELECT id FROM back WHERE last_cursor <= $2)"
    ))
    .bind(session)
    .bind(cursor)
    .execute(connection)
    .await
    .map_err(db)?;
    Ok(done.rows_affected())
}
