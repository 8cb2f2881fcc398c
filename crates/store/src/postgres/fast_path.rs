//! SQL statements of the fast path: they update only sessions whose version is unchanged, and return which ones those
//! were.
//!
//! Rows are passed as arrays in the order of session ids, the same order in which sessions are locked, so that
//! statements cannot deadlock.

use std::collections::{HashMap, HashSet};

use remuda_domain::{CommitId, RunId, Timestamp, WorkerId, error::Result};
use sqlx::{AssertSqlSafe, query_as, query_scalar};
use sqlx_macros::FromRow;
use uuid::Uuid;

use super::{
    claim::SessionSettings,
    dialect::{Connection, LEASE_LEFT},
};
use crate::{
    error::db,
    row_writes::{Chunk, RunFinish, RunInsert},
    rows::{HeadRow, HeadRunRow, LeaseRow, LockedHead, WORKER_GONE},
    time::DbTime,
};

type Heads = HashMap<Uuid, LockedHead>;

fn chunk_of<'a>(chunks: &'a HashMap<Uuid, &Chunk>, session: Uuid) -> Option<&'a str> {
    chunks.get(&session).map(|chunk| &*chunk.json)
}

fn by_session(chunks: &[Chunk]) -> HashMap<Uuid, &Chunk> {
    chunks.iter().map(|chunk| (chunk.session, chunk)).collect()
}

/// An unlocked session head, with the settings that a grant needs.
#[derive(Debug, FromRow)]
pub(super) struct SubmitRow {
    #[sqlx(flatten)]
    pub(super) head: HeadRow,
    root: String,
    execution: Option<String>,
    agent: Option<String>,
    model: Option<String>,
    permissions: Option<String>,
    depth: i32,
    budgeted: bool,
}

impl SubmitRow {
    /// The head, and the settings unless a budget covers the session.
    pub(super) fn split(self) -> (HeadRow, Option<SessionSettings>) {
        let Self { head, root, execution, agent, model, permissions, depth, budgeted } = self;
        let settings = SessionSettings { root, execution, agent, model, permissions, depth };
        (head, (!budgeted).then_some(settings))
    }
}

/// Loads sessions whose runs could be granted in the submit statement.
pub(super) async fn load_for_submit(
    connection: &mut Connection,
    sessions: &[Uuid],
) -> Result<Vec<SubmitRow>> {
    query_as(
        "SELECT s.id, s.tenant_id, s.pool, s.closed, s.epoch, s.owner, s.current_run, s.current_started_at, s.pending, s.last_seq, \
         s.last_cursor, s.last_commit, s.ties, s.version, clock_timestamp() AS now, w.root, s.execution, s.agent, s.model, \
         s.permissions, s.depth, s.budget_id IS NOT NULL AS budgeted \
         FROM sessions s JOIN workspaces w ON w.id = s.workspace_id WHERE s.id = ANY($1)",
    )
    .bind(sessions)
    .fetch_all(connection)
    .await
    .map_err(db)
}

/// Queues one run per session, and grants some of the sessions to workers whose lease is live.
pub(super) async fn submit(
    connection: &mut Connection,
    heads: &Heads,
    runs: &[RunInsert],
    chunks: &[Chunk],
    granted: &HashMap<Uuid, WorkerId>,
) -> Result<HashSet<Uuid>> {
    let chunks = by_session(chunks);
    let mut rows: Vec<(&LockedHead, &RunInsert)> =
        runs.iter().filter_map(|run| Some((heads.get(&run.session)?, run))).collect();
    rows.sort_unstable_by_key(|(_, run)| run.session);
    let column = |rows: &[(&LockedHead, &RunInsert)], value: fn(&LockedHead) -> i64| -> Vec<i64> {
        rows.iter().map(|(head, _)| value(head)).collect()
    };
    let to = |session| granted.get(&session).map(|worker| worker.as_uuid());
    let sql = format!(
        "WITH won AS (UPDATE sessions s SET pending = n.pending, last_seq = n.seq, last_cursor = n.last_cursor, epoch = n.epoch, \
           owner = coalesce(n.granted, s.owner), current_run = n.current_run, current_started_at = n.started, version = s.version + 1 \
           FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::uuid[], \
             $7::uuid[], $8::text[], $9::bigint[], $10::timestamptz[], $11::text[], $12::text[], $13::bigint[], $14::uuid[], \
             $15::uuid[], $16::timestamptz[], $17::uuid[]) \
             AS n (session, version, pending, seq, last_cursor, run, tenant, input, timeout_ms, created_at, traceparent, chunk, epoch, \
               granted, current_run, started, awaited_by) \
           WHERE s.id = n.session AND s.version = n.version AND (n.granted IS NULL OR EXISTS (SELECT 1 FROM workers w \
             WHERE w.id = n.granted AND w.state < {WORKER_GONE} AND w.lease_until > clock_timestamp())) RETURNING n.*), \
         queued AS (INSERT INTO runs (id, tenant_id, session_id, seq, state, input, timeout_ms, created_at, traceparent, \
             awaited_by) SELECT run, tenant, session, seq, 0, input, timeout_ms, created_at, traceparent, awaited_by FROM won), \
         told AS (INSERT INTO events (session_id, last_cursor, chunk) SELECT session, last_cursor, chunk FROM won) \
         SELECT session FROM won"
    );
    let written: Vec<Uuid> = query_scalar(AssertSqlSafe(sql))
        .bind(rows.iter().map(|(_, run)| run.session).collect::<Vec<_>>())
        .bind(column(&rows, |it| it.version))
        .bind(column(&rows, |it| it.head.pending))
        .bind(column(&rows, |it| it.head.last_seq))
        .bind(column(&rows, |it| it.head.last_cursor))
        .bind(rows.iter().map(|(_, run)| run.id).collect::<Vec<_>>())
        .bind(rows.iter().map(|(_, run)| run.tenant).collect::<Vec<_>>())
        .bind(rows.iter().map(|(_, run)| run.input.as_str()).collect::<Vec<_>>())
        .bind(rows.iter().map(|(_, run)| run.timeout_ms).collect::<Vec<_>>())
        .bind(rows.iter().map(|(_, run)| run.created_at.0).collect::<Vec<_>>())
        .bind(rows.iter().map(|(_, run)| run.traceparent.as_deref()).collect::<Vec<_>>())
        .bind(rows.iter().map(|(_, run)| chunk_of(&chunks, run.session)).collect::<Vec<_>>())
        .bind(column(&rows, |it| it.head.epoch))
        .bind(rows.iter().map(|(_, run)| to(run.session)).collect::<Vec<_>>())
        .bind(rows.iter().map(|(head, _)| head.head.current.map(RunId::as_uuid)).collect::<Vec<_>>())
        .bind(rows.iter().map(|(head, _)| head.current_started_at).collect::<Vec<_>>())
        .bind(rows.iter().map(|(_, run)| run.awaited_by).collect::<Vec<_>>())
        .fetch_all(connection)
        .await
        .map_err(db)?;
    Ok(written.into_iter().collect())
}

/// A session to claim, with its head run and the lease of the claiming worker.
#[derive(Debug, FromRow)]
pub(super) struct ClaimableRow {
    #[sqlx(flatten)]
    pub(super) run: HeadRunRow,
    pool: String,
    closed: bool,
    epoch: i64,
    owner: Option<Uuid>,
    pending: i64,
    last_seq: i64,
    last_cursor: i64,
    last_commit: Option<Uuid>,
    #[sqlx(rename = "ties")]
    has_related: bool,
    version: i64,
    now: DbTime,
    lease_state: i16,
    lease_left_us: i64,
}

impl ClaimableRow {
    pub(super) fn session(&self) -> Uuid {
        self.run.run.session_id
    }

    pub(super) fn now(&self) -> Timestamp {
        self.now.0
    }

    pub(super) fn is_owned(&self) -> bool {
        self.owner.is_some()
    }

    pub(super) fn lease(&self, worker: WorkerId) -> LeaseRow {
        LeaseRow {
            id: worker.as_uuid(),
            state: self.lease_state,
            left_us: self.lease_left_us,
            now: Some(self.now),
        }
    }

    /// The session head and the head run.
    pub(super) fn split(self) -> (HeadRow, HeadRunRow) {
        let head = HeadRow {
            id: self.session(),
            tenant_id: self.run.run.tenant_id,
            pool: self.pool,
            closed: self.closed,
            epoch: self.epoch,
            owner: self.owner,
            current_run: self.run.run.current_run,
            current_started_at: self.run.run.current_started_at,
            pending: self.pending,
            last_seq: self.last_seq,
            last_cursor: self.last_cursor,
            last_commit: self.last_commit,
            has_related: self.has_related,
            version: self.version,
            now: Some(self.now),
        };
        (head, self.run)
    }
}

/// Loads sessions that have a head run, for a claiming worker.
pub(super) async fn claimable(
    connection: &mut Connection,
    sessions: impl Iterator<Item = Uuid>,
    worker: WorkerId,
) -> Result<Vec<ClaimableRow>> {
    let sql = format!(
        concat!(
            "SELECT ",
            run_columns!(),
            ", w.root, s.execution, s.agent, s.model, s.permissions, s.depth, s.budget_id AS session_budget, s.pool, s.closed, s.epoch, \
             s.owner, s.pending, s.last_seq, s.last_cursor, s.last_commit, s.ties, s.version, clock_timestamp() AS now, \
             a.state AS lease_state, a.left_us AS lease_left_us \
             FROM (SELECT state, {lease_left} AS left_us FROM workers WHERE id = $2) a CROSS JOIN unnest($1::uuid[]) AS wanted (id) \
             JOIN sessions s ON s.id = wanted.id JOIN workspaces w ON w.id = s.workspace_id CROSS JOIN LATERAL (SELECT * FROM runs \
             WHERE session_id = wanted.id AND state < 10 ORDER BY seq LIMIT 1) r"
        ),
        lease_left = LEASE_LEFT
    );
    query_as(AssertSqlSafe(sql))
        .bind(sessions.collect::<Vec<_>>())
        .bind(worker.as_uuid())
        .fetch_all(connection)
        .await
        .map_err(db)
}

/// Session heads as column arrays, in the order of session ids.
struct HeadColumns {
    sessions: Vec<Uuid>,
    versions: Vec<i64>,
    epochs: Vec<i64>,
    owners: Vec<Option<Uuid>>,
    currents: Vec<Option<Uuid>>,
    started: Vec<Option<Timestamp>>,
    pending: Vec<i64>,
    cursors: Vec<i64>,
    commits: Vec<Option<Uuid>>,
}

impl HeadColumns {
    fn of(heads: &[&LockedHead]) -> Self {
        Self {
            sessions: heads.iter().map(|it| it.head.session.as_uuid()).collect(),
            versions: heads.iter().map(|it| it.version).collect(),
            epochs: heads.iter().map(|it| it.head.epoch).collect(),
            owners: heads.iter().map(|it| it.head.owner.worker().map(WorkerId::as_uuid)).collect(),
            currents: heads.iter().map(|it| it.head.current.map(RunId::as_uuid)).collect(),
            started: heads.iter().map(|it| it.current_started_at).collect(),
            pending: heads.iter().map(|it| it.head.pending).collect(),
            cursors: heads.iter().map(|it| it.head.last_cursor).collect(),
            commits: heads.iter().map(|it| it.head.last_commit.map(CommitId::as_uuid)).collect(),
        }
    }
}

/// Writes owner, epoch and current run of sessions.
pub(super) async fn save(connection: &mut Connection, heads: &[LockedHead]) -> Result<HashSet<Uuid>> {
    let mut heads: Vec<&LockedHead> = heads.iter().collect();
    heads.sort_unstable_by_key(|it| it.head.session.as_uuid());
    let columns = HeadColumns::of(&heads);
    let written: Vec<Uuid> = query_scalar(
        "UPDATE sessions s SET epoch = n.epoch, owner = n.owner, current_run = n.current_run, current_started_at = n.started, \
           version = s.version + 1 \
         FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::uuid[], $5::uuid[], $6::timestamptz[]) \
           AS n (session, version, epoch, owner, current_run, started) \
         WHERE s.id = n.session AND s.version = n.version RETURNING s.id",
    )
    .bind(columns.sessions)
    .bind(columns.versions)
    .bind(columns.epochs)
    .bind(columns.owners)
    .bind(columns.currents)
    .bind(columns.started)
    .fetch_all(connection)
    .await
    .map_err(db)?;
    Ok(written.into_iter().collect())
}

/// Ends one run per session, and updates the session head.
pub(super) async fn end(
    connection: &mut Connection,
    heads: &Heads,
    runs: &[(Uuid, &RunFinish)],
    chunks: &[Chunk],
) -> Result<HashSet<Uuid>> {
    let chunks = by_session(chunks);
    let mut rows: Vec<(&LockedHead, &RunFinish)> =
        runs.iter().filter_map(|(session, run)| Some((heads.get(session)?, *run))).collect();
    rows.sort_unstable_by_key(|(head, _)| head.head.session.as_uuid());
    let columns = HeadColumns::of(&rows.iter().map(|(head, _)| *head).collect::<Vec<_>>());
    let chunk_texts: Vec<Option<&str>> =
        columns.sessions.iter().map(|session| chunk_of(&chunks, *session)).collect();
    let written: Vec<Uuid> = query_scalar(
        "WITH won AS (UPDATE sessions s SET epoch = n.epoch, owner = n.owner, current_run = n.current_run, \
           current_started_at = n.started, pending = n.pending, last_cursor = n.last_cursor, last_commit = n.last_commit, \
           version = s.version + 1 FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::uuid[], $5::uuid[], $6::timestamptz[], \
             $7::bigint[], $8::bigint[], $9::uuid[], $10::text[], $11::uuid[], $12::smallint[], $13::timestamptz[], \
             $14::timestamptz[], $15::text[], $16::text[], $17::integer[], $18::timestamptz[]) \
             AS n (session, version, epoch, owner, current_run, started, pending, last_cursor, last_commit, chunk, run, state, \
               started_at, finished_at, failure, last_steps, attempts, stopped_at) \
           WHERE s.id = n.session AND s.version = n.version RETURNING n.*), \
         ended AS (UPDATE runs r SET state = n.state, started_at = coalesce(n.started_at, r.started_at), \
           finished_at = n.finished_at, failure = n.failure, last_steps = n.last_steps, attempts = r.attempts + n.attempts, \
           cancel_stopped_at = n.stopped_at, parked = NULL, parked_at = NULL FROM won n WHERE r.id = n.run AND r.state + 0 < 10), \
         told AS (INSERT INTO events (session_id, last_cursor, chunk) SELECT session, last_cursor, chunk FROM won) \
         SELECT session FROM won",
    )
    .bind(columns.sessions)
    .bind(columns.versions)
    .bind(columns.epochs)
    .bind(columns.owners)
    .bind(columns.currents)
    .bind(columns.started)
    .bind(columns.pending)
    .bind(columns.cursors)
    .bind(columns.commits)
    .bind(chunk_texts)
    .bind(rows.iter().map(|(_, run)| run.id).collect::<Vec<_>>())
    .bind(rows.iter().map(|(_, run)| run.state).collect::<Vec<_>>())
    .bind(rows.iter().map(|(_, run)| run.started_at.map(|at| at.0)).collect::<Vec<_>>())
    .bind(rows.iter().map(|(_, run)| run.finished_at.0).collect::<Vec<_>>())
    .bind(rows.iter().map(|(_, run)| run.failure.as_deref()).collect::<Vec<_>>())
    .bind(rows.iter().map(|(_, run)| run.last_steps.as_deref()).collect::<Vec<_>>())
    .bind(rows.iter().map(|(_, run)| run.attempts).collect::<Vec<_>>())
    .bind(rows.iter().map(|(_, run)| run.stopped_at.map(|at| at.0)).collect::<Vec<_>>())
    .fetch_all(connection)
    .await
    .map_err(db)?;
    Ok(written.into_iter().collect())
}
