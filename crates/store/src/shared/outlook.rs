//! What the future of a run can be guessed from.

use std::time::Duration;

use remuda_domain::{
    Head, Run, RunId, RunState, Timestamp,
    error::Result,
    run::{self, ParkReason, Parked},
    session::Owner,
    step::Step,
};
use sqlx::{AssertSqlSafe, FromRow, query_as};
use uuid::Uuid;

use super::{
    dialect::{Connection, NOW},
    overview::heads,
    store::Context,
};
use crate::{
    Front, HeartbeatAge, Outlook,
    error::{corrupt, db},
    line::{Line, Waiting},
    rows::{WORKER_ACTIVE, WORKER_DRAINING, WORKER_GONE},
    time::DbTime,
};

/// Runs of the session that say how long the next will take.
const SESSION_PACE: i64 = 20;
/// Runs of the tenant that are looked at for those of the same pool.
const POOL_PACE: i64 = 200;
/// Fewer than this say too little.
const ENOUGH: usize = 3;
/// Sessions that are looked at for a place among them.
const MOST_SESSIONS: i64 = 10_000;

#[derive(Debug, FromRow)]
struct FrontRow {
    id: Uuid,
    seq: i64,
    state: i16,
    parked: Option<String>,
    parked_at: Option<DbTime>,
    created_at: DbTime,
    started_at: Option<DbTime>,
    paused_ms: i64,
    current_started_at: Option<DbTime>,
    is_current: bool,
    now: DbTime,
}

fn millis(number: i64) -> Duration {
    Duration::from_millis(u64::try_from(number).unwrap_or(0))
}

impl FrontRow {
    fn front(&self) -> Result<Front> {
        let stored = RunState::from_db(self.state).ok_or_else(|| corrupt("run state"))?;
        let runs = stored == RunState::Queued && self.is_current;
        let started_at = self.started_at.or(self.current_started_at.filter(|_| runs)).map(|at| at.0);
        let reason =
            self.parked.as_deref().map(|text| ParkReason::parse(text).ok_or_else(|| corrupt("park reason")));
        let parked = reason.transpose()?.zip(self.parked_at).map(|(reason, at)| Parked { reason, at: at.0 });
        // A parked run's time stands still.
        let until = parked.map_or(self.now.0, |parked| parked.at);
        Ok(Front {
            run: RunId::from_uuid(self.id),
            state: if runs { RunState::Running } else { stored },
            parked,
            worked: run::worked(started_at, until, millis(self.paused_ms)),
        })
    }
}

/// The first unfinished run of a session.
async fn first(connection: &mut Connection, run: &Run) -> Result<Option<FrontRow>> {
    let sql = format!(
        "SELECT r.id, r.seq, r.state, r.parked, r.parked_at, r.created_at, r.started_at, r.paused_ms, s.current_started_at, \
         s.current_run IS NOT DISTINCT FROM r.id AS is_current, {NOW} AS now FROM runs r JOIN sessions s ON s.id = r.session_id \
         WHERE r.session_id = $1 AND r.state < 10 ORDER BY r.seq LIMIT 1"
    );
    query_as(AssertSqlSafe(sql)).bind(run.session.as_uuid()).fetch_optional(connection).await.map_err(db)
}

#[derive(Debug, FromRow)]
struct LineRow {
    id: Uuid,
    pool: String,
    pending: i64,
    created_at: DbTime,
    is_free: bool,
}

/// The sessions that a worker could take, of the first that have unfinished runs.
async fn line(connection: &mut Connection) -> Result<Line> {
    let sql = format!(
        "{} SELECT id, pool, pending, created_at, state = 0 AND NOT alive AS is_free FROM heads",
        heads()
    );
    let rows: Vec<LineRow> =
        query_as(AssertSqlSafe(sql)).bind(MOST_SESSIONS).fetch_all(connection).await.map_err(db)?;
    let looked = i64::try_from(rows.len()).unwrap_or(i64::MAX);
    let mut line = Line { at_least: looked >= MOST_SESSIONS, ..Line::default() };
    for LineRow { id, pool, pending, created_at, .. } in rows.into_iter().filter(|row| row.is_free) {
        let waiting = Waiting { since: created_at.0, session: id, pending };
        line.pools.entry(pool).or_default().push(waiting);
    }
    Ok(line)
}

#[derive(Debug, FromRow)]
struct PaceRow {
    state: i16,
    started_at: Option<DbTime>,
    finished_at: Option<DbTime>,
    paused_ms: i64,
}

impl PaceRow {
    /// How long the run worked. One that somebody stopped says nothing of others.
    fn worked(&self) -> Option<Duration> {
        let state = RunState::from_db(self.state).filter(|state| state.is_terminal())?;
        let (started, finished) = self.started_at.zip(self.finished_at)?;
        let worked = || run::worked(Some(started.0), finished.0, millis(self.paused_ms));
        (state != RunState::Cancelled).then(worked)
    }
}

/// Everything before the first unfinished run of a session is over.
async fn earlier_runs(connection: &mut Connection, run: &Run, before: i64) -> Result<Vec<PaceRow>> {
    query_as(
        "SELECT state, started_at, finished_at, paused_ms FROM runs WHERE session_id = $1 AND seq < $2 \
         ORDER BY seq DESC LIMIT $3",
    )
    .bind(run.session.as_uuid())
    .bind(before)
    .bind(SESSION_PACE)
    .fetch_all(connection)
    .await
    .map_err(db)
}

/// Of the same tenant: how long others' runs take is theirs to know. `condition` says which of its runs are looked at.
async fn pool_pace(connection: &mut Connection, head: &Head, condition: &str) -> Result<Vec<Duration>> {
    let sql = format!(
        "SELECT r.state, r.started_at, r.finished_at, r.paused_ms FROM (SELECT session_id, state, started_at, finished_at, \
         paused_ms FROM runs WHERE tenant_id = $1 {condition} ORDER BY id DESC LIMIT $2) r CROSS JOIN sessions s \
         WHERE s.id = r.session_id AND s.pool = $3 AND r.state >= 10"
    );
    let rows: Vec<PaceRow> = query_as(AssertSqlSafe(sql))
        .bind(head.tenant.as_uuid())
        .bind(POOL_PACE)
        .bind(head.pool.as_str())
        .fetch_all(connection)
        .await
        .map_err(db)?;
    Ok(rows.iter().filter_map(PaceRow::worked).collect())
}

/// A tenant whose newest runs all wait has older ones behind them.
const BEFORE_WHAT_WAITS: &str =
    "AND id < (SELECT o.id FROM runs o WHERE o.tenant_id = $1 AND o.state < 10 ORDER BY o.id LIMIT 1)";

#[derive(Debug, FromRow)]
struct WorkersRow {
    slots: i64,
    draining: i64,
    free_since: Option<DbTime>,
}

async fn workers(connection: &mut Connection, head: &Head) -> Result<WorkersRow> {
    let sql = format!(
        "SELECT CAST(coalesce(sum(CASE WHEN state = {WORKER_ACTIVE} THEN slots END), 0) AS bigint) AS slots, \
         count(CASE WHEN state = {WORKER_DRAINING} THEN 1 END) AS draining, \
         min(CASE WHEN state = {WORKER_ACTIVE} THEN free_since END) AS free_since FROM workers \
         WHERE pool = $1 AND state < {WORKER_GONE} AND lease_until > {NOW}"
    );
    query_as(AssertSqlSafe(sql)).bind(head.pool.as_str()).fetch_one(connection).await.map_err(db)
}

#[derive(Debug, FromRow)]
struct BeatRow {
    beat_at: Option<DbTime>,
    lease_until: DbTime,
    state: i16,
    now: DbTime,
}

async fn heartbeat(connection: &mut Connection, head: &Head) -> Result<Option<HeartbeatAge>> {
    let Owner::Alive { worker, .. } = head.owner else { return Ok(None) };
    let sql = format!("SELECT beat_at, lease_until, state, {NOW} AS now FROM workers WHERE id = $1");
    let row: Option<BeatRow> =
        query_as(AssertSqlSafe(sql)).bind(worker.as_uuid()).fetch_optional(connection).await.map_err(db)?;
    let since = |from: Timestamp, until: Timestamp| (until - from).to_std().unwrap_or_default();
    Ok(row.and_then(|row| {
        let beat_at = row.beat_at?.0;
        Some(HeartbeatAge {
            age: since(beat_at, row.now.0),
            lease: since(beat_at, row.lease_until.0),
            draining: row.state == WORKER_DRAINING,
        })
    }))
}

/// A look ahead for a run, whose steps are given.
pub(super) async fn load(
    context: &Context,
    connection: &mut Connection,
    run: &Run,
    head: &Head,
    steps: Vec<Step>,
) -> Result<Outlook> {
    if run.state.is_terminal() {
        return Ok(Outlook { now: crate::time::now(), ..Outlook::default() });
    }
    let Some(first) = first(connection, run).await? else { return Ok(Outlook::default()) };
    let is_free = !matches!(head.owner, Owner::Alive { .. }) && first.state == RunState::Queued.to_db();
    let mut place = None;
    if is_free {
        let line = context.line.get(line(connection)).await?;
        place = Some(line.place(head.pool.as_str(), first.created_at.0, head.session.as_uuid()));
    }
    let earlier = earlier_runs(connection, run, first.seq).await?;
    let session_pace: Vec<Duration> = earlier.iter().filter_map(PaceRow::worked).collect();
    let mut pool_pace_found = Vec::new();
    if session_pace.len() < ENOUGH {
        pool_pace_found = pool_pace(connection, head, "").await?;
        if pool_pace_found.len() < ENOUGH {
            pool_pace_found = pool_pace(connection, head, BEFORE_WHAT_WAITS).await?;
        }
    }
    let workers = workers(connection, head).await?;
    let count = |number: i64| u32::try_from(number).unwrap_or(u32::MAX);
    let ended = steps.iter().filter(|step| step.is_finished()).count();
    Ok(Outlook {
        now: first.now.0,
        front: if first.id == run.id.as_uuid() { None } else { Some(first.front()?) },
        place,
        slots: count(workers.slots),
        draining: count(workers.draining),
        slot_free_since: workers.free_since.map(|at| at.0),
        heartbeat: heartbeat(connection, head).await?,
        steps_ended: u32::try_from(ended).unwrap_or(u32::MAX),
        // What is under way comes before what is over.
        step: steps.iter().find(|step| !step.is_finished()).or(steps.last()).cloned(),
        session_pace,
        pool_pace: pool_pace_found,
        previous_end: earlier.iter().filter_map(|row| row.finished_at).map(|at| at.0).max(),
    })
}
