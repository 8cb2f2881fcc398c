//! Chunks of events, each of which names the one before it in its session (migration 0013).
//!
//! ```text
//!  session ── last_chunk ──► 5 ──► 4 ──► 3 ──► 2 ──► 1        towards the beginning
//!                                  ▲ landmark, in an index: one in about 64 events
//! ```
//!
//! So appending touches no page but that of the session and the last one of the table. Whoever reads begins at a landmark behind what it
//! wants, or at the end, and goes back.

use remuda_domain::error::Result;
use sqlx::{query, query_as, query_scalar};
use uuid::Uuid;

use super::dialect::Connection;
use crate::{error::db, rows::ChunkRow};

/// A landmark is a chunk in which a multiple of this is passed.
pub(super) const LANDMARK_EVERY: i64 = 64;

/// The chunks of a session from some chunk on back to the beginning: `back`. A row that is named may be gone, or another one by now.
macro_rules! back {
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

/// The first landmark of the session `$1` from a cursor on, or its end.
macro_rules! behind {
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
    back!(
        "s.id",
        "coalesce((SELECT l.id FROM events l WHERE l.session_id = s.id AND l.landmark = 1 ORDER BY l.last_cursor LIMIT 1), s.last_chunk)",
        ""
    ),
    "SELECT e.chunk FROM back JOIN events e ON e.id = back.id ORDER BY back.last_cursor LIMIT 1)"
);

/// The newest chunk of the session `s`.
pub(super) const NEWEST: &str =
    "(SELECT e.chunk FROM events e WHERE e.id = s.last_chunk AND e.session_id = s.id)";

/// Deletes all chunks of sessions, which must still be there.
pub(super) const DELETE_ALL: &str = "DELETE FROM events WHERE id IN \
     (WITH RECURSIVE back (id, session_id, last_cursor, previous) AS (SELECT e.id, e.session_id, e.last_cursor, e.previous \
     FROM sessions s CROSS JOIN events e ON e.id = s.last_chunk AND e.session_id = s.id WHERE s.id {among} \
     UNION ALL SELECT e.id, e.session_id, e.last_cursor, e.previous FROM back b CROSS JOIN events e ON e.id = b.previous \
     WHERE e.session_id = b.session_id AND e.last_cursor < b.last_cursor) SELECT id FROM back)";

/// Chunks with events after a cursor, in order, and some if there are any. They hold about as many events as wanted, unless old ones are gone.
pub(super) async fn after(
    connection: &mut Connection,
    session: Uuid,
    after: i64,
    wanted: i64,
) -> Result<Vec<ChunkRow>> {
    query_as(concat!(
        back!("$1", behind!("$3"), " AND e.last_cursor > $2"),
        "SELECT e.last_cursor, e.chunk FROM back JOIN events e ON e.id = back.id WHERE back.last_cursor > $2 ORDER BY back.last_cursor"
    ))
    .bind(session)
    .bind(after)
    .bind(after.saturating_add(wanted))
    .fetch_all(connection)
    .await
    .map_err(db)
}

/// The last cursor of about so many of the oldest chunks, if there are more.
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

/// Deletes the oldest chunks.
pub(super) async fn delete_through(connection: &mut Connection, session: Uuid, cursor: i64) -> Result<u64> {
    let done = query(concat!(
        "DELETE FROM events WHERE id IN (",
        back!("$1", behind!("$2"), ""),
        "SELECT id FROM back WHERE last_cursor <= $2)"
    ))
    .bind(session)
    .bind(cursor)
    .execute(connection)
    .await
    .map_err(db)?;
    Ok(done.rows_affected())
}
