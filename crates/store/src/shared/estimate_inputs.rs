//! Loads the inputs for estimating when a run starts and ends.

use std::time::Duration;

use remuda_domain::{
    Head, Run, RunId, RunState, Timestamp,
    error::Result,
    run::{self, ParkReason, Parked},
    session::Owner,
    step::Step,
};
use sqlx::{AssertSqlSafe, query_as};
use sqlx_macros::FromRow;
use uuid::Uuid;

use super::{
    dialect::{Connection, NOW},
    overview::heads_cte,
    store::Context,
};
use crate::{
    EstimateInputs, FirstUnfinishedRun, HeartbeatAge,
    error::{corrupt, db},
    rows::{WORKER_ACTIVE, WORKER_DRAINING, WORKER_GONE},
    runnable_queue::{QueuedSession, RunnableQueue},
    time::DbTime,
};

/// Most recent runs of the session to read execution times from.
const MAX_SESSION_SAMPLES: i64 = 20;
/// Most recent runs of the tenant to scan for runs of the same pool.
const MAX_POOL_RUNS: i64 = 200;
/// Fewer samples are not enough for an estimate.
const MIN_SAMPLES: usize = 3;
/// Sessions to scan for a queue position.
const MAX_SESSIONS: i64 = 10_000;

#[derive(Debug, FromRow)]
struct FirstRunRow {
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

impl FirstRunRow {
    fn first_unfinished(&self) -> Result<FirstUnfinishedRun> {
        let stored = RunState::from_db(self.state).ok_or_else(|| corrupt("run state"))?;
        let runs = stored == RunState::Queued && self.is_current;
        let started_at = self.started_at.or(self.current_started_at.filter(|_| runs)).map(|at| at.0);
        let reason =
            self.parked.as_deref().map(|text| ParkReason::parse(text).ok_or_else(|| corrupt("park reason")));
        let parked = reason.transpose()?.zip(self.parked_at).map(|(reason, at)| Parked { reason, at: at.0 });
        // Time spent parked does not count.
        let until = parked.map_or(self.now.0, |parked| parked.at);
        Ok(FirstUnfinishedRun {
            run: RunId::from_uuid(self.id),
            state: if runs { RunState::Running } else { stored },
            parked,
            worked: run::worked(started_at, until, millis(self.paused_ms)),
        })
    }
}

/// Loads the first unfinished run of a session.
async fn load_first_run(connection: &mut Connection, run: &Run) -> Result<Option<FirstRunRow>> {
    let sql = format!(
        "SELECT r.id, r.seq, r.state, r.parked, r.parked_at, r.created_at, r.started_at, r.paused_ms, s.current_started_at, \
         s.current_run IS NOT DISTINCT FROM r.id AS is_current, {NOW} AS now FROM runs r JOIN sessions s ON s.id = r.session_id \
         WHERE r.session_id = $1 AND r.state < 10 ORDER BY r.seq LIMIT 1"
    );
    query_as(AssertSqlSafe(sql)).bind(run.session.as_uuid()).fetch_optional(connection).await.map_err(db)
}

#[derive(Debug, FromRow)]
struct QueueRow {
    id: Uuid,
    pool: String,
    pending: i64,
    created_at: DbTime,
    is_free: bool,
}

/// Loads the runnable sessions among the first [`MAX_SESSIONS`] with unfinished runs.
async fn load_queue(connection: &mut Connection) -> Result<RunnableQueue> {
    let sql = format!(
        "{} SELECT id, pool, pending, created_at, state = 0 AND NOT alive AS is_free FROM heads",
        heads_cte()
    );
    let rows: Vec<QueueRow> =
        query_as(AssertSqlSafe(sql)).bind(MAX_SESSIONS).fetch_all(connection).await.map_err(db)?;
    let scanned = i64::try_from(rows.len()).unwrap_or(i64::MAX);
    let mut queue = RunnableQueue { at_least: scanned >= MAX_SESSIONS, ..RunnableQueue::default() };
    for QueueRow { id, pool, pending, created_at, .. } in rows.into_iter().filter(|row| row.is_free) {
        let queued = QueuedSession { since: created_at.0, session: id, pending };
        queue.pools.entry(pool).or_default().push(queued);
    }
    Ok(queue)
}

#[derive(Debug, FromRow)]
struct ExecutionTimeRow {
    state: i16,
    started_at: Option<DbTime>,
    finished_at: Option<DbTime>,
    paused_ms: i64,
}

impl ExecutionTimeRow {
    /// The execution time of an ended run. A cancelled run is no sample.
    fn worked(&self) -> Option<Duration> {
        let state = RunState::from_db(self.state).filter(|state| state.is_terminal())?;
        let (started, finished) = self.started_at.zip(self.finished_at)?;
        let worked = || run::worked(Some(started.0), finished.0, millis(self.paused_ms));
        (state != RunState::Cancelled).then(worked)
    }
}

/// Loads the runs before the first unfinished run of a session; they have all ended.
async fn earlier_runs(connection: &mut Connection, run: &Run, before: i64) -> Result<Vec<ExecutionTimeRow>> {
    query_as(
        "SELECT state, started_at, finished_at, paused_ms FROM runs WHERE session_id = $1 AND seq < $2 \
         ORDER BY seq DESC LIMIT $3",
    )
    .bind(run.session.as_uuid())
    .bind(before)
    .bind(MAX_SESSION_SAMPLES)
    .fetch_all(connection)
    .await
    .map_err(db)
}

/// Loads execution times of the same tenant's runs only: other tenants' times are private. `condition` narrows the
/// scan.
async fn pool_pace(connection: &mut Connection, head: &Head, condition: &str) -> Result<Vec<Duration>> {
    let sql = format!(
        "SELECT r.state, r.started_at, r.finished_at, r.paused_ms FROM (SELECT session_id, state, started_at, finished_at, \
         paused_ms FROM runs WHERE tenant_id = $1 {condition} ORDER BY id DESC LIMIT $2) r CROSS JOIN sessions s \
         WHERE s.id = r.session_id AND s.pool = $3 AND r.state >= 10"
    );
    let rows: Vec<ExecutionTimeRow> = query_as(AssertSqlSafe(sql))
        .bind(head.tenant.as_uuid())
        .bind(MAX_POOL_RUNS)
        .bind(head.pool.as_str())
        .fetch_all(connection)
        .await
        .map_err(db)?;
    Ok(rows.iter().filter_map(ExecutionTimeRow::worked).collect())
}

/// If the tenant's newest runs are all unfinished, older ended runs precede them.
const BEFORE_OLDEST_UNFINISHED: &str =
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
struct HeartbeatRow {
    beat_at: Option<DbTime>,
    lease_until: DbTime,
    state: i16,
    now: DbTime,
}

async fn heartbeat(connection: &mut Connection, head: &Head) -> Result<Option<HeartbeatAge>> {
    let Owner::Alive { worker, .. } = head.owner else { return Ok(None) };
    let sql = format!("SELECT beat_at, lease_until, state, {NOW} AS now FROM workers WHERE id = $1");
    let row: Option<HeartbeatRow> =
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

/// Loads the estimate inputs of a run with the given steps.
pub(super) async fn load(
    context: &Context,
    connection: &mut Connection,
    run: &Run,
    head: &Head,
    steps: Vec<Step>,
) -> Result<EstimateInputs> {
    if run.state.is_terminal() {
        return Ok(EstimateInputs { now: crate::time::now(), ..EstimateInputs::default() });
    }
    let Some(first) = load_first_run(connection, run).await? else { return Ok(EstimateInputs::default()) };
    let is_free = !matches!(head.owner, Owner::Alive { .. }) && first.state == RunState::Queued.to_db();
    let mut place = None;
    if is_free {
        let queue = context.runnable_queue.get(load_queue(connection)).await?;
        place = Some(queue.position(head.pool.as_str(), first.created_at.0, head.session.as_uuid()));
    }
    let earlier = earlier_runs(connection, run, first.seq).await?;
    let session_pace: Vec<Duration> = earlier.iter().filter_map(ExecutionTimeRow::worked).collect();
    let mut pool_samples = Vec::new();
    if session_pace.len() < MIN_SAMPLES {
        pool_samples = pool_pace(connection, head, "").await?;
        if pool_samples.len() < MIN_SAMPLES {
            pool_samples = pool_pace(connection, head, BEFORE_OLDEST_UNFINISHED).await?;
        }
    }
    let workers = workers(connection, head).await?;
    let count = |number: i64| u32::try_from(number).unwrap_or(u32::MAX);
    let ended = steps.iter().filter(|step| step.is_finished()).count();
    Ok(EstimateInputs {
        now: first.now.0,
        front: if first.id == run.id.as_uuid() { None } else { Some(first.first_unfinished()?) },
        place,
        slots: count(workers.slots),
        draining: count(workers.draining),
        slot_free_since: workers.free_since.map(|at| at.0),
        heartbeat: heartbeat(connection, head).await?,
        steps_ended: u32::try_from(ended).unwrap_or(u32::MAX),
        // An unfinished step takes precedence over a finished one.
        step: steps.iter().find(|step| !step.is_finished()).or(steps.last()).cloned(),
        session_pace,
        pool_pace: pool_samples,
        previous_end: earlier.iter().filter_map(|row| row.finished_at).map(|at| at.0).max(),
    })
}
