//! Deleting what is over for long: what is common to all of it, and workers.

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
use crate::{Collected, Retention, Sweep, Trimmed, error::db, rows::WORKER_GONE, time::DbTime};

/// Workers that are deleted at once.
const WORKERS: i64 = 1000;

/// The moment before which everything is old, by the database's clock.
pub(super) async fn before(connection: &mut Connection, kept: Duration) -> Result<Timestamp> {
    let sql = format!("SELECT {NOW}");
    let at: DbTime = query_scalar(AssertSqlSafe(sql)).fetch_one(connection).await.map_err(db)?;
    let kept = TimeDelta::from_std(kept).unwrap_or(TimeDelta::MAX);
    Ok(at.0.checked_sub_signed(kept).unwrap_or(Timestamp::MIN_UTC))
}

/// Ids that were made before that are less than this one: their first 48 bits are milliseconds since 1970.
pub(super) fn id_at(time: Timestamp) -> Uuid {
    let millis = u128::try_from(time.timestamp_millis()).unwrap_or(0);
    Uuid::from_u128(millis << 80)
}

/// Rows of workers that are gone for so long, whose sessions are in other hands, and who left no sandbox behind.
async fn collect_workers(context: &Context, gone_for: Duration, dry_run: bool) -> Result<u64> {
    let mut connection = dialect::writing(&context.writer).await?;
    let before = before(&mut connection, gone_for).await?;
    let sql = format!(
        "SELECT w.id FROM workers w WHERE w.state = {WORKER_GONE} AND w.taken_back AND w.lease_until < $1 \
         AND NOT EXISTS (SELECT 1 FROM sandboxes x WHERE x.worker_id = w.id) ORDER BY w.id LIMIT $2"
    );
    let mut gone: Vec<Uuid> = query_scalar(AssertSqlSafe(sql))
        .bind(DbTime(before))
        .bind(WORKERS)
        .fetch_all(&mut *connection)
        .await
        .map_err(db)?;
    // The usual case, and one look at a small table.
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
    async fn collect_runs(&self, sweep: Sweep<RunId>) -> Result<Collected<RunId>> {
        let context = self.context.clone();
        self.to_the_end(async move { gc_runs::collect(&context, sweep).await }).await
    }

    async fn collect_sessions(&self, sweep: Sweep<SessionId>) -> Result<Collected<SessionId>> {
        let context = self.context.clone();
        self.to_the_end(async move { gc_sessions::collect(&context, sweep).await }).await
    }

    async fn collect_workers(&self, gone_for: Duration, dry_run: bool) -> Result<u64> {
        let context = self.context.clone();
        self.to_the_end(async move { collect_workers(&context, gone_for, dry_run).await }).await
    }

    async fn count_old_events(
        &self,
        kept: Duration,
        after: Option<SessionId>,
        limit: u32,
    ) -> Result<Trimmed> {
        trim::count(&self.context, kept, after, limit).await
    }
}
