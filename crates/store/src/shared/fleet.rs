//! Workers, leases, recovery scans and queue statistics.

use std::time::Duration;

use async_trait::async_trait;
use remuda_domain::{
    Code, Error, RunId, SessionId, TenantId, WorkerId,
    background_task::{TaskRound, TaskStatus},
    error::Result,
    run::ParkReason,
    worker::{Registration, Worker},
};
use sqlx::{AssertSqlSafe, query, query_as, query_scalar};
use sqlx_macros::FromRow;
use uuid::Uuid;

use super::{
    approvals, background_tasks, descendants,
    dialect::{
        self, BEFORE_MICROS_3, EXPIRY_LEFT, IN_MICROS_2, LEASE_LEFT, NAMES_CURRENT_RUN, NOW, RUNNABLE_SINCE,
    },
    overview::flush_counters,
    recover, resume,
    store::{Context, SqlStore},
};
use crate::{
    CancelledRuns, Fleet, Heartbeat, HeartbeatResponse, LostGrant, LostGrantPage, PoolDepth, PoolStats,
    Reclaimed, RunnableSession, ScanPage, SessionChange,
    error::{corrupt, db, json},
    rows::{WORKER_ACTIVE, WORKER_DRAINING, WORKER_GONE, WorkerRow},
    time::{DbTime, now},
};

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// Selects sessions whose head run could start and that no live worker owns. `rest` ends the statement. Without `state
/// < 10`, SQLite does not recognise that the index `runs_live` applies.
fn runnable_sql(columns: &str, rest: &str) -> String {
    format!(
        "SELECT {columns} FROM (SELECT DISTINCT session_id FROM runs WHERE state = 0 AND state < 10) q \
         JOIN sessions s ON s.id = q.session_id \
         WHERE NOT EXISTS (SELECT 1 FROM workers w WHERE w.id = s.owner AND w.state < {WORKER_GONE} AND w.lease_until > {NOW}) \
         AND 0 = (SELECT r.state FROM runs r WHERE r.session_id = s.id AND r.state < 10 ORDER BY r.seq LIMIT 1) {rest}"
    )
}

/// CTE `looked`: the next `$2` sessions after `$1` with an unfinished run. Walks the index from session to session.
const NEXT_SESSIONS_WITH_WORK: &str = "WITH RECURSIVE live (id) AS (\
    SELECT f.session_id FROM (SELECT session_id FROM runs WHERE state < 10 AND session_id > $1 ORDER BY session_id LIMIT 1) f \
    UNION ALL SELECT (SELECT r.session_id FROM runs r WHERE r.state < 10 AND r.session_id > l.id \
      ORDER BY r.session_id LIMIT 1) FROM live l WHERE l.id IS NOT NULL), \
    looked (id) AS (SELECT id FROM live WHERE id IS NOT NULL LIMIT $2)";

/// Selects the next `$2` sessions with unfinished runs after `$1`, and whether they are runnable. Walks the index from
/// session to session, so the cost does not depend on the number of queued runs.
fn sessions_with_work_sql() -> String {
    format!(
        "{NEXT_SESSIONS_WITH_WORK} SELECT s.id, s.tenant_id, s.pool, \
           0 = (SELECT r.state FROM runs r WHERE r.session_id = s.id AND r.state < 10 ORDER BY r.seq LIMIT 1) AND NOT EXISTS \
           (SELECT 1 FROM workers w WHERE w.id = s.owner AND w.state < {WORKER_GONE} AND w.lease_until > {NOW}) AS runnable \
         FROM looked l CROSS JOIN sessions s WHERE s.id = l.id ORDER BY s.id"
    )
}

async fn register(context: &Context, worker: &Registration, lease: Duration) -> Result<()> {
    let sql = format!(
        "INSERT INTO workers (id, host, version, pool, slots, started_at, lease_until, beat_at, free_since, bus_secret) \
         VALUES ($1, $3, $4, $5, $6, $7, {IN_MICROS_2}, {NOW}, {NOW}, $8)"
    );
    query(AssertSqlSafe(sql))
        .bind(worker.id.as_uuid())
        .bind(micros(lease))
        .bind(worker.host.as_str())
        .bind(worker.version.as_str())
        .bind(worker.pool.as_str())
        .bind(i32::try_from(worker.slots).unwrap_or(i32::MAX))
        .bind(DbTime(now()))
        .bind(worker.bus_secret.as_ref().map(|secret| secret.expose().as_slice()))
        .execute(&mut *dialect::write_connection(&context.writer).await?)
        .await
        .map_err(db)?;
    Ok(())
}

async fn renew(context: &Context, beat: &Heartbeat) -> Result<HeartbeatResponse> {
    let mut tx = dialect::begin(&context.writer).await?;
    let sql = format!(
        "UPDATE workers SET lease_until = {IN_MICROS_2}, busy = $3, running = $4, worked_ms = $5, beat_at = {NOW}, \
         free_since = CASE WHEN slots > $3 THEN coalesce(free_since, {NOW}) END \
         WHERE id = $1 AND state < {WORKER_GONE} AND lease_until > {NOW} RETURNING state"
    );
    let state: Option<i16> = query_scalar(AssertSqlSafe(sql))
        .bind(beat.worker.as_uuid())
        .bind(micros(beat.lease))
        .bind(i32::try_from(beat.running.len()).unwrap_or(i32::MAX))
        .bind(json(&beat.running.iter().map(|run| run.as_uuid().simple().to_string()).collect::<Vec<_>>())?)
        .bind(json(&beat.worked.iter().map(Duration::as_millis).collect::<Vec<_>>())?)
        .fetch_optional(&mut *tx)
        .await
        .map_err(db)?;
    let Some(state) = state else {
        return Err(Error::new(Code::OwnershipLost, "the worker's lease has ended"));
    };
    let runs: Vec<Uuid> = beat.running.iter().map(|run| run.as_uuid()).collect();
    let cancel = if runs.is_empty() { Vec::new() } else { dialect::cancel_requested(&mut tx, &runs).await? };
    tx.commit().await.map_err(db)?;
    Ok(HeartbeatResponse {
        cancel: cancel.into_iter().map(RunId::from_uuid).collect(),
        drain: state == WORKER_DRAINING,
    })
}

async fn acquire_leader_lease(context: &Context, name: &str, holder: &str, lease: Duration) -> Result<bool> {
    let sql = format!(
        "INSERT INTO leases (name, holder, lease_until) VALUES ($1, $3, {IN_MICROS_2}) \
         ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, lease_until = excluded.lease_until \
         WHERE leases.holder = excluded.holder OR leases.lease_until <= {NOW}"
    );
    let done = query(AssertSqlSafe(sql))
        .bind(name)
        .bind(micros(lease))
        .bind(holder)
        .execute(&mut *dialect::write_connection(&context.writer).await?)
        .await
        .map_err(db)?;
    Ok(done.rows_affected() == 1)
}

async fn drain(context: &Context, worker: WorkerId) -> Result<Worker> {
    let sql = format!(
        "UPDATE workers SET state = CASE state WHEN {WORKER_ACTIVE} THEN {WORKER_DRAINING} ELSE state END \
         WHERE id = $1 RETURNING {}",
        worker_columns()
    );
    let row: Option<WorkerRow> = query_as(AssertSqlSafe(sql))
        .bind(worker.as_uuid())
        .fetch_optional(&mut *dialect::write_connection(&context.writer).await?)
        .await
        .map_err(db)?;
    let not_found = || Error::new(Code::WorkerNotFound, "there is no such worker").at("worker_id");
    row.ok_or_else(not_found)?.into_worker()
}

pub(super) fn worker_columns() -> String {
    format!(
        "id, host, version, pool, slots, busy, state, started_at, lease_until, lease_until > {NOW} AS alive"
    )
}

#[derive(Debug, FromRow)]
struct RunnableSessionRow {
    runnable: bool,
    id: Uuid,
    tenant_id: Uuid,
    pool: String,
}

#[derive(Debug, FromRow)]
struct StatsRow {
    pool: String,
    runnable: i64,
    running: i64,
    queued: i64,
    workers: i64,
    slots: i64,
    oldest: Option<DbTime>,
}

#[derive(Debug, FromRow)]
struct DepthRow {
    pool: String,
    runnable: i64,
    running: i64,
    queued: i64,
    oldest: Option<DbTime>,
}

/// Counts queues in the index `runs_live` alone, and reads only the first run of each session: it may execute or be
/// parked, and all runs after it are queued.
fn depths_sql() -> String {
    format!(
        "WITH lines AS (SELECT session_id, min(seq) AS first, count(*) AS pending FROM runs WHERE state < 10 \
           GROUP BY session_id), \
         heads AS (SELECT s.pool, lines.pending, {RUNNABLE_SINCE} AS since, r.state = 0 AND w.id IS NULL AS runnable, \
           w.id IS NOT NULL AND s.current_run = r.id AS running, r.state = 2 AS parked \
           FROM lines JOIN sessions s ON s.id = lines.session_id \
           JOIN runs r ON r.session_id = lines.session_id AND r.seq = lines.first \
           LEFT JOIN workers w ON w.id = s.owner AND w.state < {WORKER_GONE} AND w.lease_until > {NOW}), \
         work AS (SELECT pool, count(CASE WHEN runnable THEN 1 END) AS runnable, count(CASE WHEN running THEN 1 END) AS running, \
           CAST(sum(pending - CASE WHEN running OR parked THEN 1 ELSE 0 END) AS bigint) AS queued, \
           min(CASE WHEN runnable THEN since END) AS oldest FROM heads GROUP BY pool), \
         pools AS (SELECT pool FROM work UNION SELECT pool FROM workers WHERE state < {WORKER_GONE} AND lease_until > {NOW}) \
         SELECT p.pool, coalesce(work.runnable, 0) AS runnable, coalesce(work.running, 0) AS running, \
           coalesce(work.queued, 0) AS queued, work.oldest FROM pools p LEFT JOIN work ON work.pool = p.pool ORDER BY p.pool"
    )
}

#[async_trait]
impl Fleet for SqlStore {
    async fn register_worker(&self, worker: &Registration, lease: Duration) -> Result<()> {
        let (context, worker) = (self.context.clone(), worker.clone());
        self.run_to_completion(async move { register(&context, &worker, lease).await }).await
    }

    async fn renew_lease(&self, beat: &Heartbeat) -> Result<HeartbeatResponse> {
        let (context, beat) = (self.context.clone(), beat.clone());
        let done = self.run_to_completion(async move { renew(&context, &beat).await }).await;
        self.flush_counters_in_background();
        done
    }

    async fn retire_worker(&self, worker: WorkerId) -> Result<()> {
        let sql = format!(
            "UPDATE workers SET state = {WORKER_GONE}, busy = 0, running = '[]', worked_ms = '[]' WHERE id = $1"
        );
        query(AssertSqlSafe(sql))
            .bind(worker.as_uuid())
            .execute(&mut *dialect::write_connection(&self.context.writer).await?)
            .await
            .map_err(db)?;
        flush_counters(&self.context).await;
        Ok(())
    }

    async fn list_workers(&self, include_gone: bool) -> Result<Vec<Worker>> {
        let mut sql = format!("SELECT {} FROM workers", worker_columns());
        if !include_gone {
            sql.push_str(&format!(" WHERE state < {WORKER_GONE} AND lease_until > {NOW}"));
        }
        sql.push_str(" ORDER BY id DESC LIMIT 1000");
        let rows: Vec<WorkerRow> =
            query_as(AssertSqlSafe(sql)).fetch_all(&self.context.reader).await.map_err(db)?;
        rows.into_iter().map(WorkerRow::into_worker).collect()
    }

    async fn drain_worker(&self, worker: WorkerId) -> Result<Worker> {
        let context = self.context.clone();
        self.run_to_completion(async move { drain(&context, worker).await }).await
    }

    async fn reclaim_sessions(&self, limit: u32) -> Result<Reclaimed> {
        let context = self.context.clone();
        self.run_to_completion(async move { recover::reclaim_sessions(&context, limit).await }).await
    }

    async fn resume_ready(&self, after: Option<RunId>, limit: u32) -> Result<ScanPage<Vec<SessionChange>>> {
        let context = self.context.clone();
        self.run_to_completion(async move { resume::resume_ready(&context, after, limit).await }).await
    }

    async fn stop_orphans(&self, after: Option<RunId>, limit: u32) -> Result<ScanPage<CancelledRuns>> {
        let context = self.context.clone();
        self.run_to_completion(async move { descendants::stop_orphans(&context, after, limit).await }).await
    }

    async fn expire_approvals(&self, limit: u32) -> Result<Reclaimed> {
        let context = self.context.clone();
        self.run_to_completion(async move { approvals::expire(&context, limit).await }).await
    }

    async fn next_approval_expiry(&self) -> Result<Option<Duration>> {
        let sql = format!(
            "SELECT {EXPIRY_LEFT} FROM approvals WHERE state = 'pending' AND expires_at IS NOT NULL \
             ORDER BY expires_at LIMIT 1"
        );
        let left: Option<i64> =
            query_scalar(AssertSqlSafe(sql)).fetch_optional(&self.context.reader).await.map_err(db)?;
        Ok(left.map(|micros| Duration::from_micros(u64::try_from(micros).unwrap_or(0))))
    }

    async fn next_lease_expiry(&self) -> Result<Option<Duration>> {
        let sql = format!("SELECT min({LEASE_LEFT}) FROM workers WHERE state < {WORKER_GONE}");
        let left: Option<i64> =
            query_scalar(AssertSqlSafe(sql)).fetch_one(&self.context.reader).await.map_err(db)?;
        Ok(left.map(|micros| Duration::from_micros(u64::try_from(micros).unwrap_or(0))))
    }

    async fn expire_all_leases(&self) -> Result<u64> {
        let sql = format!("UPDATE workers SET state = {WORKER_GONE}, busy = 0 WHERE state < {WORKER_GONE}");
        let done = query(AssertSqlSafe(sql))
            .execute(&mut *dialect::write_connection(&self.context.writer).await?)
            .await
            .map_err(db)?;
        query("DELETE FROM leases")
            .execute(&mut *dialect::write_connection(&self.context.writer).await?)
            .await
            .map_err(db)?;
        Ok(done.rows_affected())
    }

    async fn runnable_sessions(&self, after: Option<SessionId>, limit: u32) -> Result<Vec<RunnableSession>> {
        let (sql, limit) = (sessions_with_work_sql(), usize::try_from(limit).unwrap_or(usize::MAX));
        let (mut runnable, mut after) = (Vec::new(), after.map_or(Uuid::nil(), SessionId::as_uuid));
        while runnable.len() < limit {
            let missing = limit - runnable.len();
            let rows: Vec<RunnableSessionRow> = query_as(AssertSqlSafe(sql.as_str()))
                .bind(after)
                .bind(i64::try_from(missing).unwrap_or(i64::MAX))
                .fetch_all(&self.context.reader)
                .await
                .map_err(db)?;
            let is_last_page = rows.len() < missing;
            after = rows.last().map_or(after, |row| row.id);
            for row in rows.into_iter().filter(|row| row.runnable) {
                runnable.push(RunnableSession {
                    tenant: TenantId::from_uuid(row.tenant_id),
                    session: SessionId::from_uuid(row.id),
                    pool: row.pool.parse().map_err(|_| corrupt("pool"))?,
                });
            }
            if is_last_page {
                break;
            }
        }
        Ok(runnable)
    }

    async fn lost_grants(
        &self,
        after: Option<SessionId>,
        limit: u32,
        granted_ago: Duration,
    ) -> Result<LostGrantPage> {
        let sql = format!(
            "{NEXT_SESSIONS_WITH_WORK} SELECT s.id, s.tenant_id, CASE WHEN w.id IS NOT NULL AND w.state < {WORKER_GONE} AND w.lease_until > {NOW} \
               AND w.beat_at > s.current_started_at AND s.current_started_at < {BEFORE_MICROS_3} AND NOT {NAMES_CURRENT_RUN} \
               THEN s.owner END AS owner \
             FROM looked l CROSS JOIN sessions s LEFT JOIN workers w ON w.id = s.owner WHERE s.id = l.id ORDER BY s.id"
        );
        let rows: Vec<(Uuid, Uuid, Option<Uuid>)> = query_as(AssertSqlSafe(sql))
            .bind(after.map_or(Uuid::nil(), SessionId::as_uuid))
            .bind(i64::from(limit))
            .bind(micros(granted_ago))
            .fetch_all(&self.context.reader)
            .await
            .map_err(db)?;
        let is_full = rows.len() >= usize::try_from(limit).unwrap_or(usize::MAX);
        let next = rows.last().filter(|_| is_full).map(|(session, ..)| SessionId::from_uuid(*session));
        let lost_grant = |(session, tenant, owner): (Uuid, Uuid, Option<Uuid>)| {
            let (tenant, session) = (TenantId::from_uuid(tenant), SessionId::from_uuid(session));
            Some(LostGrant { tenant, session, owner: WorkerId::from_uuid(owner?) })
        };
        Ok(LostGrantPage { sessions: rows.into_iter().filter_map(lost_grant).collect(), next })
    }

    async fn count_sessions_with_work(&self) -> Result<u64> {
        // A session whose head run is parked does not wait for a worker.
        let sql = "SELECT count(*) FROM (SELECT DISTINCT session_id FROM runs WHERE state = 0 AND state < 10) q WHERE 0 = \
             (SELECT r.state FROM runs r WHERE r.session_id = q.session_id AND r.state < 10 ORDER BY r.seq LIMIT 1)";
        let count: i64 = query_scalar(sql).fetch_one(&self.context.reader).await.map_err(db)?;
        Ok(u64::try_from(count).unwrap_or(0))
    }

    async fn queue_stats(&self) -> Result<Vec<PoolStats>> {
        let runnable = runnable_sql(
            "s.pool, count(*) AS sessions, min((SELECT r.created_at FROM runs r \
             WHERE r.session_id = s.id AND r.state < 10 ORDER BY r.seq LIMIT 1)) AS oldest",
            "GROUP BY s.pool",
        );
        let sql = format!(
            "WITH pools AS (SELECT DISTINCT pool FROM sessions UNION SELECT pool FROM workers WHERE state < {WORKER_GONE} \
               AND lease_until > {NOW}), \
             runnable AS ({runnable}), \
             live AS (SELECT s.pool, count(CASE WHEN r.state = 0 THEN 1 END) AS unparked, \
               count(CASE WHEN s.current_run = r.id AND EXISTS (SELECT 1 FROM workers w WHERE w.id = s.owner \
               AND w.state < {WORKER_GONE} AND w.lease_until > {NOW}) THEN 1 END) AS running \
               FROM runs r JOIN sessions s ON s.id = r.session_id WHERE r.state < 10 GROUP BY s.pool), \
             fleet AS (SELECT pool, count(*) AS workers, CAST(sum(slots) AS bigint) AS slots FROM workers \
               WHERE state = {WORKER_ACTIVE} AND lease_until > {NOW} GROUP BY pool) \
             SELECT p.pool, coalesce(runnable.sessions, 0) AS runnable, coalesce(live.running, 0) AS running, \
               coalesce(live.unparked - live.running, 0) AS queued, coalesce(fleet.workers, 0) AS workers, \
               coalesce(fleet.slots, 0) AS slots, runnable.oldest \
             FROM pools p LEFT JOIN runnable ON runnable.pool = p.pool LEFT JOIN live ON live.pool = p.pool \
             LEFT JOIN fleet ON fleet.pool = p.pool ORDER BY p.pool"
        );
        let rows: Vec<StatsRow> =
            query_as(AssertSqlSafe(sql)).fetch_all(&self.context.reader).await.map_err(db)?;
        let stats = |row: StatsRow| {
            Ok(PoolStats {
                pool: row.pool.parse().map_err(|_| corrupt("pool"))?,
                runnable_sessions: row.runnable,
                running_sessions: row.running,
                queued_runs: row.queued,
                workers: u32::try_from(row.workers).unwrap_or(0),
                slots: u32::try_from(row.slots).unwrap_or(0),
                oldest_runnable_at: row.oldest.map(|at| at.0),
            })
        };
        rows.into_iter().map(stats).collect()
    }

    async fn queue_depths(&self) -> Result<Vec<PoolDepth>> {
        let rows: Vec<DepthRow> =
            query_as(AssertSqlSafe(depths_sql())).fetch_all(&self.context.reader).await.map_err(db)?;
        let unsigned = |count: i64| u64::try_from(count).unwrap_or(0);
        let depth = |row: DepthRow| {
            Ok(PoolDepth {
                pool: row.pool.parse().map_err(|_| corrupt("pool"))?,
                runnable_sessions: unsigned(row.runnable),
                running_sessions: unsigned(row.running),
                queued_runs: unsigned(row.queued),
                oldest_runnable_at: row.oldest.map(|at| at.0),
            })
        };
        rows.into_iter().map(depth).collect()
    }

    async fn count_parked(&self) -> Result<Vec<(ParkReason, u64)>> {
        let sql = "SELECT parked, count(*) FROM runs WHERE state = 2 GROUP BY parked";
        let rows: Vec<(String, i64)> = query_as(sql).fetch_all(&self.context.reader).await.map_err(db)?;
        let counted = |(reason, count): (String, i64)| {
            let reason = ParkReason::parse(&reason).ok_or_else(|| corrupt("parked run"))?;
            Ok((reason, u64::try_from(count).unwrap_or(0)))
        };
        rows.into_iter().map(counted).collect()
    }

    async fn acquire_leader_lease(&self, name: &str, holder: &str, lease: Duration) -> Result<bool> {
        let (context, name, holder) = (self.context.clone(), name.to_owned(), holder.to_owned());
        let done = self
            .run_to_completion(async move { acquire_leader_lease(&context, &name, &holder, lease).await })
            .await;
        self.flush_counters_in_background();
        done
    }

    async fn delete_expired_keys(&self) -> Result<u64> {
        let done = query("DELETE FROM idempotency_keys WHERE expires_at <= $1")
            .bind(DbTime(now()))
            .execute(&mut *dialect::write_connection(&self.context.writer).await?)
            .await
            .map_err(db)?;
        Ok(done.rows_affected())
    }

    async fn record_task(&self, round: &TaskRound) -> Result<()> {
        let (context, round) = (self.context.clone(), round.clone());
        self.run_to_completion(async move { background_tasks::record(&context, &round).await }).await
    }

    async fn list_tasks(&self) -> Result<Vec<TaskStatus>> {
        background_tasks::list(&self.context).await
    }

    async fn ping(&self) -> Result<()> {
        query("SELECT 1").execute(&self.context.reader).await.map_err(db)?;
        self.context.disk_room.check(dialect::find_room(&self.context.writer)).await
    }
}
