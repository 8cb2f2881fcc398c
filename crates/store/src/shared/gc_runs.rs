//! Deletes runs that ended before the retention period.
//!
//! A run is deleted together with its descendants, so that a tree never loses its root only and the total spending of a
//! kept run stays complete. Descendants are deleted first, so that an interruption leaves a smaller tree.

use std::collections::{BTreeMap, BTreeSet};

use remuda_domain::{RunId, Timestamp, error::Result};
use sqlx::{AssertSqlSafe, query, query_as, query_scalar};
use sqlx_macros::FromRow;
use uuid::Uuid;

use super::{
    dialect::{self, AMONG_1, Connection, NOW, SKIP_LOCKED, id_list},
    gc,
    lock::lock,
    store::Context,
};
use crate::{Sweep, SweepResult, error::db, time::DbTime};

/// Runs deleted in one transaction.
const RUNS_AT_ONCE: usize = 50;

#[derive(Debug, FromRow)]
struct Candidate {
    id: Uuid,
    state: i16,
    finished_at: Option<DbTime>,
    /// Its parent run exists, and is deleted together with it.
    #[sqlx(rename = "is_below")]
    has_parent: bool,
}

#[derive(Debug, FromRow)]
struct Member {
    root: Uuid,
    id: Uuid,
    level: i32,
    session_id: Uuid,
    state: i16,
    finished_at: Option<DbTime>,
    /// Its session has no unfinished runs.
    is_idle: bool,
    /// Its idempotency key is valid, or a webhook still has to deliver its events.
    #[sqlx(rename = "is_wanted")]
    is_referenced: bool,
}

fn is_old(state: i16, finished_at: Option<DbTime>, before: Timestamp) -> bool {
    state >= 10 && finished_at.is_some_and(|at| at.0 < before)
}

/// Handles one page of runs, in id order.
pub(super) async fn collect(context: &Context, sweep: Sweep<RunId>) -> Result<SweepResult<RunId>> {
    let mut connection = context.reader.acquire().await.map_err(db)?;
    let before = gc::cutoff(&mut connection, sweep.older_than).await?;
    let page: Vec<Candidate> = query_as(
        "SELECT r.id, r.state, r.finished_at, \
         r.parent_run IS NOT NULL AND EXISTS (SELECT 1 FROM runs p WHERE p.id = r.parent_run) AS is_below \
         FROM runs r WHERE r.id > $1 AND r.id < $2 ORDER BY r.id LIMIT $3",
    )
    .bind(sweep.after.map_or(Uuid::nil(), RunId::as_uuid))
    // A run created after the cutoff cannot have ended before it.
    .bind(gc::first_id_at(before))
    .bind(i64::from(sweep.limit.max(1)))
    .fetch_all(&mut *connection)
    .await
    .map_err(db)?;
    let is_full = page.len() >= sweep.limit.max(1) as usize;
    let next = page.last().filter(|_| is_full).map(|last| RunId::from_uuid(last.id));
    let roots = page.iter().filter(|run| !run.has_parent && is_old(run.state, run.finished_at, before));
    let roots: Vec<Uuid> = roots.map(|run| run.id).collect();
    let members = old_trees(&mut connection, &roots, before).await?;
    drop(connection);
    let mut deleted = 0;
    for some in members.chunks(RUNS_AT_ONCE) {
        if sweep.dry_run {
            deleted += some.len() as u64;
            continue;
        }
        match delete_some(context, some).await {
            Ok(rows) => deleted += rows,
            Err(error) => {
                // The next page continues after it: a run that cannot be deleted must not block the rest.
                tracing::warn!(error = error.chain(), "deleting old runs failed; the next round will retry");
                break;
            }
        }
    }
    Ok(SweepResult { deleted, next })
}

/// The members of these trees that may be deleted, the lowest first.
async fn old_trees(connection: &mut Connection, roots: &[Uuid], before: Timestamp) -> Result<Vec<Member>> {
    if roots.is_empty() {
        return Ok(Vec::new());
    }
    // `|| ''` keeps the planner from walking the index of all active webhooks.
    let sql = format!(
        "WITH RECURSIVE tree (root, id, level) AS (SELECT id, id, 0 FROM runs WHERE id {AMONG_1} \
         UNION ALL SELECT t.root, r.id, t.level + 1 FROM tree t JOIN runs r ON r.parent_run = t.id) \
         SELECT t.root, t.id, t.level, r.session_id, r.state, r.finished_at, s.pending = 0 AS is_idle, \
         EXISTS (SELECT 1 FROM idempotency_keys k WHERE k.tenant_id = r.tenant_id AND k.key = r.idempotency_key \
           AND k.run_id = r.id AND k.expires_at > {NOW}) \
         OR EXISTS (SELECT 1 FROM webhooks w WHERE w.session_id = r.session_id AND w.run_id = r.id \
           AND w.state || '' = 'active') AS is_wanted \
         FROM tree t JOIN runs r ON r.id = t.id JOIN sessions s ON s.id = r.session_id"
    );
    let members: Vec<Member> =
        query_as(AssertSqlSafe(sql)).bind(id_list(roots)?).fetch_all(connection).await.map_err(db)?;
    let kept = members.iter().filter(|it| it.is_referenced || !is_old(it.state, it.finished_at, before));
    let kept: BTreeSet<Uuid> = kept.map(|it| it.root).collect();
    let mut gone: Vec<Member> = members.into_iter().filter(|it| !kept.contains(&it.root)).collect();
    gone.sort_by_key(|it| (std::cmp::Reverse(it.level), it.id));
    Ok(gone)
}

async fn delete_some(context: &Context, runs: &[Member]) -> Result<u64> {
    let mut tx = dialect::begin(&context.writer).await?;
    record_last_activity(&mut tx, runs).await?;
    let ids: Vec<Uuid> = runs.iter().map(|run| run.id).collect();
    let rows = delete(&mut tx, &ids).await?;
    tx.commit().await.map_err(db)?;
    Ok(rows)
}

/// Records the last activity of idle sessions, which may lose the rows that show it.
async fn record_last_activity(connection: &mut Connection, runs: &[Member]) -> Result<()> {
    let mut idle: BTreeMap<Uuid, Timestamp> = BTreeMap::new();
    for run in runs.iter().filter(|run| run.is_idle) {
        let Some(at) = run.finished_at else { continue };
        let last = idle.entry(run.session_id).or_insert(at.0);
        *last = at.0.max(*last);
    }
    // In id order, like every other lock of sessions.
    lock(&mut *connection, idle.keys().copied()).await?;
    for (session, at) in idle {
        record_activity(connection, session, at).await?;
    }
    Ok(())
}

/// Records an activity of a session, unless a later one is recorded.
pub(super) async fn record_activity(connection: &mut Connection, session: Uuid, at: Timestamp) -> Result<()> {
    query("UPDATE sessions SET quiet_since = $2 WHERE id = $1 AND (quiet_since IS NULL OR quiet_since < $2)")
        .bind(session)
        .bind(DbTime(at))
        .execute(connection)
        .await
        .map_err(db)?;
    Ok(())
}

/// Deletes everything that belongs to the runs in `$1`, in this order: rows that refer to a run before the run.
const STATEMENTS: [&str; 10] = [
    "DELETE FROM run_labels WHERE run_id {among}",
    "DELETE FROM steps WHERE run_id {among}",
    "DELETE FROM spent_steps WHERE run_id {among}",
    "DELETE FROM reservations WHERE run_id {among}",
    "DELETE FROM waits WHERE run_id {among}",
    "DELETE FROM budgets WHERE id {among}",
    "DELETE FROM approvals WHERE run_id {among}",
    "DELETE FROM idempotency_keys WHERE (tenant_id, key) IN \
     (SELECT tenant_id, idempotency_key FROM runs WHERE id {among} AND idempotency_key IS NOT NULL) AND run_id {among}",
    "DELETE FROM dead_letters WHERE webhook_id IN (SELECT id FROM webhooks \
     WHERE session_id IN (SELECT session_id FROM runs WHERE id {among}) AND run_id {among})",
    "DELETE FROM webhooks WHERE session_id IN (SELECT session_id FROM runs WHERE id {among}) AND run_id {among}",
];

/// Deletes ended runs with all dependent rows, and returns their number. Runs that another process is deleting are
/// skipped.
pub(super) async fn delete(connection: &mut Connection, runs: &[Uuid]) -> Result<u64> {
    let sql = format!("SELECT id FROM runs WHERE id {AMONG_1} AND state + 0 >= 10 ORDER BY id {SKIP_LOCKED}");
    let free: Vec<Uuid> = query_scalar(AssertSqlSafe(sql))
        .bind(id_list(runs)?)
        .fetch_all(&mut *connection)
        .await
        .map_err(db)?;
    if free.is_empty() {
        return Ok(0);
    }
    for statement in STATEMENTS {
        let sql = statement.replace("{among}", AMONG_1);
        query(AssertSqlSafe(sql)).bind(id_list(&free)?).execute(&mut *connection).await.map_err(db)?;
    }
    let sql = format!("DELETE FROM runs WHERE id {AMONG_1}");
    let done = query(AssertSqlSafe(sql)).bind(id_list(&free)?).execute(connection).await.map_err(db)?;
    Ok(done.rows_affected())
}
