//! Reads on the flush thread's connection, for the fast path.

use rusqlite::{Connection, OptionalExtension as _, params};
use uuid::Uuid;

use super::dialect;
use crate::rows::{HeadRow, LeaseRow, RunRow, SessionSettings, WorkerLeaseRow};

/// A session without its head.
#[derive(Debug)]
pub(super) struct PeekedSession {
    pub(super) settings: SessionSettings,
    /// The end of its chunk list.
    pub(super) last_chunk: Option<i64>,
    /// The last cursor of that chunk.
    pub(super) last_cursor: i64,
}

pub(super) fn session(
    connection: &Connection,
    session: Uuid,
) -> rusqlite::Result<Option<(HeadRow, PeekedSession)>> {
    let mut statement = connection.prepare_cached(concat!(
        "SELECT ",
        head_columns!(),
        ", ",
        settings_columns!(),
        ", s.last_chunk FROM sessions s CROSS JOIN workspaces w ON w.id = s.workspace_id WHERE s.id = ?1"
    ))?;
    let found = statement.query_row([session], |row| {
        let mut column = 0;
        let head = HeadRow::read(row, &mut column)?;
        let settings = SessionSettings::read(row, &mut column)?;
        let (last_chunk, last_cursor) = (row.get(column)?, head.last_cursor);
        Ok((head, PeekedSession { settings, last_chunk, last_cursor }))
    });
    found.optional()
}

/// The first `count` unfinished runs of a session except one. A `LIMIT` would be a parameter, and SQLite replans a
/// statement whenever that parameter changes, so the iteration stops early instead.
pub(super) fn queued_runs(
    connection: &Connection,
    session: Uuid,
    except: Uuid,
    count: usize,
) -> rusqlite::Result<Vec<RunRow>> {
    let mut statement = connection.prepare_cached(concat!(
        "SELECT ",
        run_columns!(),
        " FROM sessions s CROSS JOIN runs r ON r.session_id = s.id WHERE s.id = ?1 AND r.state < 10 AND r.id <> ?2 ORDER BY r.seq"
    ))?;
    let rows = statement.query_map(params![session, except], |row| RunRow::read(row, &mut 0))?;
    rows.take(count).collect()
}

pub(super) fn lease(connection: &Connection, worker: Uuid) -> rusqlite::Result<Option<WorkerLeaseRow>> {
    let sql = format!("SELECT state, pool, {} FROM workers WHERE id = ?1", dialect::LEASE_LEFT);
    let mut statement = connection.prepare_cached(&sql)?;
    let lease = statement.query_row([worker], |row| {
        let lease = LeaseRow { id: worker, state: row.get(0)?, left_us: row.get(2)?, now: None };
        Ok(WorkerLeaseRow { lease, pool: row.get(1)? })
    });
    lease.optional()
}
