//! Cheap summaries for dashboards, and the counter row.

use std::collections::HashMap;

use async_trait::async_trait;
use remuda_domain::{
    Pool, RunId, RunState, SessionId, TenantId,
    budget::Amount,
    error::Result,
    run::{ParkReason, Parked},
    session::Owner,
};
use sqlx::{AssertSqlSafe, query, query_as, query_scalar};
use sqlx_macros::FromRow;
use uuid::Uuid;

use super::{
    dialect::{self, AMONG_1, Connection, LEASE_LEFT, NOW, RUNNING_RUNS, UNLOCKED_COUNTER_ROW, id_list},
    fleet::worker_columns,
    store::{Context, SqlStore},
};
use crate::{
    Counts, FleetView, Overview, PoolStats, PoolView, RunSummary,
    error::{corrupt, db, parse},
    rows::{LeaseRow, WORKER_ACTIVE, WORKER_DRAINING, WORKER_GONE, WorkerRow, count_to_db},
    time::DbTime,
};

/// How many of a tenant's oldest unfinished runs are scanned for waiting ones.
const MAX_SCANNED_RUNS: i64 = 500;
/// A larger step is left out of summaries.
const MAX_STEP_BYTES: usize = 64 * 1024;

/// CTE `heads (id, pool, pending, run_id, state, created_at, alive)`: the first `$1` sessions with unfinished runs in
/// id order, each with its first unfinished run. Walks the index of unfinished runs from session to session, so a
/// session costs a few lookups however many of its runs are queued.
pub(super) fn heads_cte() -> String {
    format!(
        "WITH RECURSIVE live (id) AS (\
         SELECT f.session_id FROM (SELECT session_id FROM runs WHERE state < 10 ORDER BY session_id LIMIT 1) f \
         UNION ALL SELECT (SELECT r.session_id FROM runs r WHERE r.state < 10 AND r.session_id > l.id \
           ORDER BY r.session_id LIMIT 1) FROM live l WHERE l.id IS NOT NULL), \
         looked (id) AS (SELECT id FROM live WHERE id IS NOT NULL LIMIT $1), \
         heads (id, pool, pending, run_id, state, created_at, alive) AS (\
         SELECT s.id, s.pool, s.pending, h.id, h.state, h.created_at, \
           EXISTS (SELECT 1 FROM workers w WHERE w.id = s.owner AND w.state < {WORKER_GONE} AND w.lease_until > {NOW}) \
         FROM looked l CROSS JOIN sessions s CROSS JOIN runs h WHERE s.id = l.id \
           AND h.id = (SELECT r.id FROM runs r WHERE r.session_id = l.id AND r.state < 10 ORDER BY r.seq LIMIT 1))"
    )
}

#[derive(Debug, FromRow)]
struct PoolRow {
    pool: String,
    sessions: i64,
    runnable: i64,
    running: i64,
    parked: i64,
    unfinished: i64,
    oldest: Option<DbTime>,
}

#[derive(Debug, FromRow)]
struct PoolWorkersRow {
    pool: String,
    active: i64,
    draining: i64,
    slots: i64,
    busy: i64,
}

fn empty_view(pool: Pool) -> PoolView {
    let stats = PoolStats {
        pool,
        runnable_sessions: 0,
        running_sessions: 0,
        queued_runs: 0,
        workers: 0,
        slots: 0,
        oldest_runnable_at: None,
    };
    PoolView { stats, parked_sessions: 0, busy: 0, draining: 0 }
}

/// Loads the pools with work or workers, by name, and the number of scanned sessions.
async fn pools(connection: &mut Connection, max_sessions: u32) -> Result<(Vec<PoolView>, i64)> {
    let sql = format!(
        "{} SELECT pool, count(*) AS sessions, count(CASE WHEN state = 0 AND NOT alive THEN 1 END) AS runnable, \
         count(CASE WHEN state = 0 AND alive THEN 1 END) AS running, count(CASE WHEN state <> 0 THEN 1 END) AS parked, \
         CAST(sum(pending) AS bigint) AS unfinished, min(CASE WHEN state = 0 AND NOT alive THEN created_at END) AS oldest \
         FROM heads GROUP BY pool",
        heads_cte()
    );
    let work: Vec<PoolRow> = query_as(AssertSqlSafe(sql))
        .bind(i64::from(max_sessions))
        .fetch_all(&mut *connection)
        .await
        .map_err(db)?;
    let sql = format!(
        "SELECT pool, count(CASE WHEN state = {WORKER_ACTIVE} THEN 1 END) AS active, \
         count(CASE WHEN state = {WORKER_DRAINING} THEN 1 END) AS draining, \
         CAST(coalesce(sum(CASE WHEN state = {WORKER_ACTIVE} THEN slots END), 0) AS bigint) AS slots, \
         CAST(coalesce(sum(CASE WHEN state = {WORKER_ACTIVE} THEN busy END), 0) AS bigint) AS busy FROM workers WHERE state < {WORKER_GONE} AND lease_until > {NOW} GROUP BY pool"
    );
    let workers: Vec<PoolWorkersRow> =
        query_as(AssertSqlSafe(sql)).fetch_all(&mut *connection).await.map_err(db)?;
    let scanned = work.iter().map(|row| row.sessions).sum();
    let mut views: HashMap<String, PoolView> = HashMap::new();
    let parsed = |name: &str| name.parse::<Pool>().map_err(|_| corrupt("pool"));
    for row in work {
        let mut view = empty_view(parsed(&row.pool)?);
        view.stats.runnable_sessions = row.runnable;
        view.stats.running_sessions = row.running;
        view.stats.queued_runs = row.unfinished - row.running - row.parked;
        view.stats.oldest_runnable_at = row.oldest.map(|at| at.0);
        view.parked_sessions = row.parked;
        views.insert(row.pool, view);
    }
    let count = |number: i64| u32::try_from(number).unwrap_or(u32::MAX);
    for row in workers {
        let new = empty_view(parsed(&row.pool)?);
        let view = views.entry(row.pool).or_insert(new);
        (view.stats.workers, view.stats.slots) = (count(row.active), count(row.slots));
        (view.busy, view.draining) = (count(row.busy), count(row.draining));
    }
    let mut views: Vec<PoolView> = views.into_values().collect();
    views.sort_by(|a, b| a.stats.pool.as_str().cmp(b.stats.pool.as_str()));
    Ok((views, scanned))
}

#[derive(Debug, FromRow)]
struct CountsRow {
    submitted: i64,
    completed: i64,
    failed: i64,
    cancelled: i64,
    timed_out: i64,
    input_tokens: i64,
    output_tokens: i64,
    cost_micros: i64,
    now: DbTime,
}

/// Adds the counters of this process to the database. If that fails, or another process holds the row, they stay
/// pending.
pub(super) async fn flush_counters(context: &Context) {
    let counts = context.counters.take();
    if counts == Counts::default() {
        return;
    }
    match add_counters(context, &counts).await {
        Ok(1) => {}
        Ok(_) => context.counters.add(counts),
        Err(error) => {
            tracing::debug!(error = error.chain(), "counter flush failed; counters stay pending");
            context.counters.add(counts);
        }
    }
}

async fn add_counters(context: &Context, counts: &Counts) -> Result<u64> {
    let sql = format!(
        "UPDATE tally SET submitted = submitted + $1, completed = completed + $2, failed = failed + $3, \
         cancelled = cancelled + $4, timed_out = timed_out + $5, input_tokens = input_tokens + $6, \
         output_tokens = output_tokens + $7, cost_micros = cost_micros + $8 WHERE id = {UNLOCKED_COUNTER_ROW}"
    );
    let done = query(AssertSqlSafe(sql))
        .bind(count_to_db(counts.submitted))
        .bind(count_to_db(counts.completed))
        .bind(count_to_db(counts.failed))
        .bind(count_to_db(counts.cancelled))
        .bind(count_to_db(counts.timed_out))
        .bind(count_to_db(counts.input_tokens))
        .bind(count_to_db(counts.output_tokens))
        .bind(count_to_db(counts.cost_micros))
        .execute(&mut *dialect::write_connection(&context.writer).await?)
        .await
        .map_err(db)?;
    Ok(done.rows_affected())
}

async fn fleet_view(context: &Context, max_sessions: u32) -> Result<FleetView> {
    flush_counters(context).await;
    let mut connection = context.reader.acquire().await.map_err(db)?;
    let (pools, scanned) = pools(&mut connection, max_sessions).await?;
    let sql = format!(
        "SELECT {} FROM workers WHERE state < {WORKER_GONE} AND lease_until > {NOW} ORDER BY pool, id LIMIT 1000",
        worker_columns()
    );
    let workers: Vec<WorkerRow> =
        query_as(AssertSqlSafe(sql)).fetch_all(&mut *connection).await.map_err(db)?;
    let sql = format!("SELECT *, {NOW} AS now FROM tally WHERE id = 1");
    let row: CountsRow = query_as(AssertSqlSafe(sql)).fetch_one(&mut *connection).await.map_err(db)?;
    let count = |number: i64| u64::try_from(number).unwrap_or(0);
    Ok(FleetView {
        at: row.now.0,
        pools,
        at_least: scanned >= i64::from(max_sessions),
        workers: workers.into_iter().map(WorkerRow::into_worker).collect::<Result<_>>()?,
        counts: Counts {
            submitted: count(row.submitted),
            completed: count(row.completed),
            failed: count(row.failed),
            cancelled: count(row.cancelled),
            timed_out: count(row.timed_out),
            input_tokens: count(row.input_tokens),
            output_tokens: count(row.output_tokens),
            cost_micros: count(row.cost_micros),
        },
    })
}

#[derive(Debug, FromRow)]
struct SummaryRow {
    id: Uuid,
    session_id: Uuid,
    name: Option<String>,
    pool: String,
    is_message: bool,
    agent: Option<String>,
    state: i16,
    parked: Option<String>,
    parked_at: Option<DbTime>,
    created_at: DbTime,
    started_at: Option<DbTime>,
    attempts: i32,
    lost_attempts: i32,
    cancelling: bool,
    ahead: i64,
    tokens: i64,
    micros: i64,
    is_current: bool,
    current_started_at: Option<DbTime>,
    owner: Option<Uuid>,
    owner_state: Option<i16>,
    left_us: Option<i64>,
    step: Option<String>,
}

impl SummaryRow {
    fn into_summary(self) -> Result<RunSummary> {
        let stored = RunState::from_db(self.state).ok_or_else(|| corrupt("run state"))?;
        let runs = stored == RunState::Queued && self.is_current;
        let lease = self.owner.zip(self.owner_state).zip(self.left_us);
        let lease = lease.map(|((id, state), left_us)| LeaseRow { id, state, left_us, now: None });
        let reason =
            self.parked.as_deref().map(|text| ParkReason::parse(text).ok_or_else(|| corrupt("park reason")));
        let started_at = self.started_at.or(self.current_started_at.filter(|_| runs));
        let count = |number: i32| u32::try_from(number).unwrap_or(0);
        let amount = |number: i64| u64::try_from(number).unwrap_or(0);
        Ok(RunSummary {
            run: RunId::from_uuid(self.id),
            session: SessionId::from_uuid(self.session_id),
            session_name: self.name,
            pool: self.pool.parse().map_err(|_| corrupt("pool"))?,
            kind: if self.is_message { "message" } else { "tools" },
            agent: self.agent,
            state: if runs { RunState::Running } else { stored },
            parked: reason.transpose()?.zip(self.parked_at).map(|(reason, at)| Parked { reason, at: at.0 }),
            created_at: self.created_at.0,
            started_at: started_at.map(|at| at.0),
            attempt: count(self.attempts) + u32::from(runs),
            lost_attempts: count(self.lost_attempts),
            owner: lease.map_or(Owner::Nobody, LeaseRow::owner),
            cancelling: self.cancelling,
            ahead: self.ahead,
            spent: Amount { tokens: amount(self.tokens), micros: amount(self.micros) },
            step: self.step.as_deref().map(|text| parse("step", text)).transpose()?,
        })
    }
}

/// Loads summaries of these runs, in this order. Runs that have ended meanwhile are left out.
async fn summaries(connection: &mut Connection, ids: &[Uuid]) -> Result<Vec<RunSummary>> {
    let sql = format!(
        "SELECT r.id, r.session_id, s.name, s.pool, substr(r.input, 1, 17) = '{{\"kind\":\"message\"' AS is_message, s.agent, \
         r.state, r.parked, r.parked_at, r.created_at, r.started_at, r.attempts, r.lost_attempts, \
         r.cancel_at IS NOT NULL AS cancelling, \
         (SELECT count(*) FROM runs a WHERE a.session_id = r.session_id AND a.state < 10 AND a.seq < r.seq) AS ahead, \
         coalesce(r.input_tokens, 0) + coalesce(r.output_tokens, 0) AS tokens, coalesce(r.cost_micros, 0) AS micros, \
         s.current_run IS NOT DISTINCT FROM r.id AS is_current, s.current_started_at, s.owner, \
         (SELECT w.state FROM workers w WHERE w.id = s.owner) AS owner_state, \
         (SELECT {LEASE_LEFT} FROM workers w WHERE w.id = s.owner) AS left_us, \
         (SELECT CASE WHEN octet_length(t.step) <= {MAX_STEP_BYTES} THEN t.step END FROM steps t WHERE t.run_id = r.id \
           ORDER BY t.id DESC LIMIT 1) AS step \
         FROM runs r JOIN sessions s ON s.id = r.session_id WHERE r.id {AMONG_1} AND r.state + 0 < 10"
    );
    let rows: Vec<SummaryRow> =
        query_as(AssertSqlSafe(sql)).bind(id_list(ids)?).fetch_all(connection).await.map_err(db)?;
    let mut rows: HashMap<Uuid, SummaryRow> = rows.into_iter().map(|row| (row.id, row)).collect();
    ids.iter().filter_map(|id| rows.remove(id)).map(SummaryRow::into_summary).collect()
}

async fn longest_running(context: &Context, tenant: TenantId, limit: u32) -> Result<Vec<RunSummary>> {
    let mut connection = context.reader.acquire().await.map_err(db)?;
    // Workers are few, and each names its runs with its heartbeats. So sessions need no index that changes with every
    // claim.
    let sql = format!(
        "SELECT r.id FROM {RUNNING_RUNS} JOIN sessions s ON s.id = r.session_id \
         WHERE w.state < {WORKER_GONE} AND r.tenant_id = $1 AND r.state + 0 = 0 AND s.current_run = r.id \
         ORDER BY coalesce(r.started_at, s.current_started_at), r.id LIMIT $2"
    );
    let ids: Vec<Uuid> = query_scalar(AssertSqlSafe(sql))
        .bind(tenant.as_uuid())
        .bind(i64::from(limit))
        .fetch_all(&mut *connection)
        .await
        .map_err(db)?;
    summaries(&mut connection, &ids).await
}

async fn longest_waiting(context: &Context, tenant: TenantId, limit: u32) -> Result<Vec<RunSummary>> {
    let mut connection = context.reader.acquire().await.map_err(db)?;
    let sql = format!(
        "SELECT r.id FROM (SELECT id FROM runs WHERE tenant_id = $1 AND state < 10 ORDER BY id LIMIT {MAX_SCANNED_RUNS}) o \
         CROSS JOIN runs r CROSS JOIN sessions s WHERE r.id = o.id AND s.id = r.session_id \
         AND (r.state + 0 <> 0 OR s.current_run IS DISTINCT FROM r.id OR NOT EXISTS (SELECT 1 FROM workers w \
           WHERE w.id = s.owner AND w.state < {WORKER_GONE} AND w.lease_until > {NOW})) \
         ORDER BY coalesce(r.parked_at, r.created_at), r.id LIMIT $2"
    );
    let ids: Vec<Uuid> = query_scalar(AssertSqlSafe(sql))
        .bind(tenant.as_uuid())
        .bind(i64::from(limit))
        .fetch_all(&mut *connection)
        .await
        .map_err(db)?;
    summaries(&mut connection, &ids).await
}

#[async_trait]
impl Overview for SqlStore {
    async fn fleet_view(&self, max_sessions: u32) -> Result<FleetView> {
        let context = self.context.clone();
        self.run_to_completion(async move { fleet_view(&context, max_sessions).await }).await
    }

    async fn longest_running(&self, tenant: TenantId, limit: u32) -> Result<Vec<RunSummary>> {
        longest_running(&self.context, tenant, limit).await
    }

    async fn longest_waiting(&self, tenant: TenantId, limit: u32) -> Result<Vec<RunSummary>> {
        longest_waiting(&self.context, tenant, limit).await
    }
}
