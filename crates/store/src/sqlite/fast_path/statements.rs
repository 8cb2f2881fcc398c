//! SQL statements of the fast path.

use std::time::Duration;

use remuda_domain::{
    CommitId, ControlPlaneId, Run, RunId, RunInput, SessionId, TenantId, Timestamp, WorkerId, error::Result,
};
use rusqlite::{Connection, OptionalExtension as _, Row, named_params, params};
use uuid::Uuid;

use super::super::{chunks::LANDMARK_EVERY, claim::SessionSettings, dialect, store::Context};
use crate::{
    error::parse,
    row_writes::{Chunk, RunFinish, RunInsert},
    rows::{HeadRow, LeaseRow, LockedHead},
    time::DbTime,
};

/// Size of the statement cache: larger than the number of statements.
const PREPARED: usize = 16;

/// Opens the database with the same settings as [`dialect::open`].
pub(super) fn open(context: &Context) -> rusqlite::Result<Connection> {
    let path =
        dialect::writer_pool(&context.writer).map(|pool| pool.connect_options().get_filename().to_owned());
    let connection = Connection::open(path.unwrap_or_default())?;
    connection.busy_timeout(dialect::BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(PREPARED);
    for (name, value) in dialect::PRAGMAS {
        connection.pragma_update(None, name, value)?;
    }
    connection.pragma_update(None, "synchronous", "full")?;
    Ok(connection)
}

/// The statements, within one transaction.
pub(super) struct Statements<'a>(pub(super) &'a Connection);

/// The columns of a session beside its head.
#[derive(Debug)]
pub(super) struct SessionRow {
    pub(super) rowid: i64,
    pub(super) settings: SessionSettings,
    /// Whether a budget covers its runs.
    pub(super) budgeted: bool,
    pub(super) stream: ChunkListEnd,
}

/// The end of a session's chunk list.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkListEnd {
    pub(super) last_chunk: Option<i64>,
    pub(super) last_cursor: i64,
}

/// An unfinished run of a session.
#[derive(Debug)]
pub(super) struct QueuedRun {
    pub(super) id: Uuid,
    seq: i64,
    input: String,
    timeout_ms: i64,
    created_at: Timestamp,
    idempotency_key: Option<String>,
    traceparent: Option<String>,
    awaited_by: Option<Uuid>,
    /// It was never attempted or cancelled, and has neither a parent nor a budget.
    pub(super) untouched: bool,
}

fn time(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Timestamp>> {
    Ok(row.get::<_, Option<i64>>(column)?.and_then(Timestamp::from_timestamp_micros))
}

fn micros(at: DbTime) -> i64 {
    at.0.timestamp_micros()
}

impl Statements<'_> {
    pub(super) fn session(&self, session: Uuid) -> rusqlite::Result<Option<(HeadRow, SessionRow)>> {
        let mut statement = self.0.prepare_cached(
            "SELECT s.rowid, s.tenant_id, s.pool, s.closed, s.epoch, s.owner, s.current_run, s.current_started_at, s.pending, \
             s.last_seq, s.last_cursor, s.last_commit, s.ties, s.version, w.root, s.execution, s.agent, s.model, s.permissions, \
             s.depth, s.budget_id IS NOT NULL, s.last_chunk FROM sessions s CROSS JOIN workspaces w ON w.id = s.workspace_id WHERE s.id = ?1",
        )?;
        let found = statement.query_row([session], |row| {
            let head = HeadRow {
                id: session,
                tenant_id: row.get(1)?,
                pool: row.get(2)?,
                closed: row.get(3)?,
                epoch: row.get(4)?,
                owner: row.get(5)?,
                current_run: row.get(6)?,
                current_started_at: time(row, 7)?.map(DbTime),
                pending: row.get(8)?,
                last_seq: row.get(9)?,
                last_cursor: row.get(10)?,
                last_commit: row.get(11)?,
                has_related: row.get(12)?,
                version: row.get(13)?,
                now: None,
            };
            let settings = SessionSettings {
                root: row.get(14)?,
                execution: row.get(15)?,
                agent: row.get(16)?,
                model: row.get(17)?,
                permissions: row.get(18)?,
                depth: row.get(19)?,
            };
            let stream = ChunkListEnd { last_chunk: row.get(21)?, last_cursor: head.last_cursor };
            Ok((head, SessionRow { rowid: row.get(0)?, settings, budgeted: row.get(20)?, stream }))
        });
        found.optional()
    }

    /// The first `count` unfinished runs of a session except one. A `LIMIT` would be a parameter, and SQLite replans a
    /// statement whenever that parameter changes, so the iteration stops early instead.
    pub(super) fn queued_runs(
        &self,
        session: Uuid,
        except: Uuid,
        count: usize,
    ) -> rusqlite::Result<Vec<QueuedRun>> {
        let mut statement = self.0.prepare_cached(
            "SELECT id, seq, input, timeout_ms, created_at, idempotency_key, traceparent, awaited_by, state = 0 AND attempts = 0 \
             AND started_at IS NULL AND cancel_at IS NULL AND parent_run IS NULL AND budget_id IS NULL \
             FROM runs WHERE session_id = ?1 AND state < 10 AND id <> ?2 ORDER BY seq",
        )?;
        let queued = |row: &Row<'_>| {
            Ok(QueuedRun {
                id: row.get(0)?,
                seq: row.get(1)?,
                input: row.get(2)?,
                timeout_ms: row.get(3)?,
                created_at: time(row, 4)?.unwrap_or_default(),
                idempotency_key: row.get(5)?,
                traceparent: row.get(6)?,
                awaited_by: row.get(7)?,
                untouched: row.get(8)?,
            })
        };
        statement.query_map(params![session, except], queued)?.take(count).collect()
    }

    pub(super) fn lease(&self, worker: Uuid) -> rusqlite::Result<Option<LeaseRow>> {
        let sql = format!("SELECT state, {} FROM workers WHERE id = ?1", dialect::LEASE_LEFT);
        let mut statement = self.0.prepare_cached(&sql)?;
        let lease =
            |row: &Row<'_>| Ok(LeaseRow { id: worker, state: row.get(0)?, left_us: row.get(1)?, now: None });
        statement.query_row([worker], lease).optional()
    }

    pub(super) fn insert_run(&self, run: &RunInsert) -> rusqlite::Result<()> {
        let mut statement = self.0.prepare_cached(
            "INSERT INTO runs (id, tenant_id, session_id, seq, state, timeout_ms, created_at, input, idempotency_key, traceparent, \
             parent_run, budget_id, awaited_by) VALUES (?1, ?2, ?3, ?4, 0, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
        )?;
        statement.execute(params![
            run.id,
            run.tenant,
            run.session,
            run.seq,
            run.timeout_ms,
            micros(run.created_at),
            run.input,
            run.idempotency_key,
            run.traceparent,
            run.parent,
            run.budget,
            run.awaited_by,
        ])?;
        Ok(())
    }

    pub(super) fn finish_run(&self, run: &RunFinish) -> rusqlite::Result<()> {
        let mut statement = self.0.prepare_cached(
            "UPDATE runs SET state = :state, started_at = coalesce(:started, started_at), finished_at = :finished, \
             cancel_stopped_at = :stopped, attempts = attempts + :attempts, lost_attempts = lost_attempts + :lost, \
             paused_ms = paused_ms + :paused, failure = :failure, last_steps = :steps, parked = NULL, parked_at = NULL \
             WHERE id = :id AND +state < 10",
        )?;
        statement.execute(named_params! {
            ":id": run.id,
            ":state": run.state,
            ":started": run.started_at.map(micros),
            ":finished": micros(run.finished_at),
            ":stopped": run.stopped_at.map(micros),
            ":attempts": run.attempts,
            ":lost": run.lost_attempts,
            ":paused": run.paused_ms,
            ":failure": run.failure,
            ":steps": run.last_steps,
        })?;
        Ok(())
    }

    /// Appends a chunk to a session's stream and updates the stream's end.
    pub(super) fn append_chunk(&self, chunk: &Chunk, stream: &mut ChunkListEnd) -> rusqlite::Result<()> {
        let mut statement = self.0.prepare_cached(
            "INSERT INTO events (session_id, last_cursor, chunk, previous, landmark) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?;
        let landmark = chunk.last_cursor / LANDMARK_EVERY > stream.last_cursor / LANDMARK_EVERY;
        let id = statement.insert(params![
            chunk.session,
            chunk.last_cursor,
            chunk.json,
            stream.last_chunk,
            landmark
        ])?;
        *stream = ChunkListEnd { last_chunk: Some(id), last_cursor: chunk.last_cursor };
        Ok(())
    }

    pub(super) fn save_head(&self, row: &SessionRow, locked: &LockedHead) -> rusqlite::Result<()> {
        let mut statement = self.0.prepare_cached(
            "UPDATE sessions SET epoch = ?2, owner = ?3, current_run = ?4, current_started_at = ?5, pending = ?6, last_seq = ?7, \
             last_cursor = ?8, last_commit = ?9, last_chunk = ?10, version = version + 1 WHERE rowid = ?1",
        )?;
        let head = &locked.head;
        statement.execute(params![
            row.rowid,
            head.epoch,
            head.owner.worker().map(WorkerId::as_uuid),
            head.current.map(RunId::as_uuid),
            locked.current_started_at.map(|at| at.timestamp_micros()),
            head.pending,
            head.last_seq,
            head.last_cursor,
            head.last_commit.map(CommitId::as_uuid),
            row.stream.last_chunk,
        ])?;
        Ok(())
    }
}

impl QueuedRun {
    /// Converts to a run; only valid if it is untouched.
    pub(super) fn into_run(self, tenant: TenantId, session: SessionId) -> Result<Run> {
        let input: RunInput = parse("input", &self.input)?;
        let timeout = Duration::from_millis(u64::try_from(self.timeout_ms).unwrap_or(0));
        let (id, line) = (RunId::from_uuid(self.id), (tenant, session));
        Ok(Run {
            idempotency_key: self.idempotency_key,
            traceparent: self.traceparent,
            awaited_by: self.awaited_by.map(ControlPlaneId::from_uuid),
            ..Run::queued(id, line, self.seq, input, timeout, self.created_at)
        })
    }
}
