//! Retention: common helpers, and the deletion of worker rows.

use std::{collections::HashSet, time::Duration};

use async_trait::async_trait;
use chrono::TimeDelta;
use remuda_domain::{RunId, SessionId, Timestamp, error::Result};
use sqlx::{AssertSqlSafe, query, query_scalar};
use uuid::Uuid;

use super::{
    dialect::{self, AMONG_1, Connection, NOW, id_list},
    gc_runs, gc_sessions,
    store::{Context, SqlStore},
    trim,
};
use crate::{Retention, Sweep, SweepResult, TrimPage, error::db, rows::WORKER_GONE, time::DbTime};

/// Workers deleted at once.
const MAX_WORKERS: i64 = 1000;

/// The time before which rows are old, by the database's clock.
pub(super) async fn cutoff(connection: &mut Connection, retention: Duration) -> Result<Timestamp> {
    let sql = format!("SELECT {NOW}");
    let at: DbTime = query_scalar(AssertSqlSafe(sql)).fetch_one(connection).await.map_err(db)?;
    let retention = TimeDelta::from_std(retention).unwrap_or(TimeDelta::MAX);
    Ok(at.0.checked_sub_signed(retention).unwrap_or(Timestamp::MIN_UTC))
}

/// A lower bound of the UUIDv7 ids created at or after a time: their first 48 bits are milliseconds since 1970.
pub(super) fn first_id_at(time: Timestamp) -> Uuid {
    let millis = u128::try_from(time.timestamp_millis()).unwrap_or(0);
    Uuid::from_u128(millis << 80)
}

/// Deletes the rows of workers that have been gone for that long, own no session, and have no sandbox on record.
async fn collect_workers(context: &Context, gone_for: Duration, dry_run: bool) -> Result<u64> {
    let mut connection = dialect::write_connection(&context.writer).await?;
    let before = cutoff(&mut connection, gone_for).await?;
    let sql = format!(
        "SELECT w.id FROM workers w WHERE w.state = {WORKER_GONE} AND w.taken_back AND w.lease_until < $1 \
         AND NOT EXISTS (SELECT 1 FROM sandboxes x WHERE x.worker_id = w.id) ORDER BY w.id LIMIT $2"
    );
    let mut gone: Vec<Uuid> = query_scalar(AssertSqlSafe(sql))
        .bind(DbTime(before))
        .bind(MAX_WORKERS)
        .fetch_all(&mut *connection)
        .await
        .map_err(db)?;
    // The usual case: one read of a small table.
    if gone.is_empty() {
        return Ok(0);
    }
    let owners: Vec<Uuid> = query_scalar(
        "SELECT DISTINCT s.owner FROM (SELECT DISTINCT session_id FROM runs WHERE state < 10) q \
         JOIN sessions s ON s.id = q.session_id WHERE s.owner IS NOT NULL",
    )
    .fetch_all(&mut *connection)
    .await
    .map_err(db)?;
    let owners: HashSet<Uuid> = owners.into_iter().collect();
    gone.retain(|worker| !owners.contains(worker));
    if dry_run {
        return Ok(gone.len() as u64);
    }
    let sql = format!("DELETE FROM workers WHERE id {AMONG_1} AND state = {WORKER_GONE} AND taken_back");
    let done = query(AssertSqlSafe(sql)).bind(id_list(&gone)?).execute(&mut *connection).await.map_err(db)?;
    Ok(done.rows_affected())
}

#[async_trait]
impl Retention for SqlStore {
    async fn collect_runs(&self, sweep: Sweep<RunId>) -> Result<SweepResult<RunId>> {
        let context = self.context.clone();
        self.run_to_completion(async move { gc_runs::collect(&context, sweep).await }).await
    }

    async fn collect_sessions(&self, sweep: Sweep<SessionId>) -> Result<SweepResult<SessionId>> {
        let context = self.context.clone();
        self.run_to_completion(async move { gc_sessions::collect(&context, sweep).await }).await
    }

    async fn collect_workers(&self, gone_for: Duration, dry_run: bool) -> Result<u64> {
        let context = self.context.clone();
        self.run_to_completion(async move { collect_workers(&context, gone_for, dry_run).await }).await
    }

    async fn count_old_events(
        &self,
        retention: Duration,
        after: Option<SessionId>,
        limit: u32,
    ) -> Result<TrimPage> {
        trim::count(&self.context, retention, after, limit).await
    }
}
