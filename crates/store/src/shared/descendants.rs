//! Cancels the descendants of runs.
//!
//! The runs of a tree are in different sessions, so they are cancelled in several transactions, from the top down: a
//! parent ends before the children it waits for, and is not resumed by their ends.

use std::collections::HashSet;

use remuda_domain::{RunId, TenantId, error::Result};
use sqlx::{AssertSqlSafe, query_as};
use uuid::Uuid;

use super::{
    cancel::{self, StopEffects},
    dialect::{self, AMONG_1, id_list},
    lock::lock_with_leases,
    park, runs,
    store::Context,
};
use crate::{CancelledRuns, ScanPage, error::db};

/// Runs cancelled in one transaction.
const RUNS_AT_ONCE: usize = 100;
/// The cancellation reason of orphans.
const ORPHANED: &str = "the parent run has ended";

/// A run, and its session.
type Member = (Uuid, Uuid);

/// Cancels every unfinished descendant of these runs. Adds the results to `all`, also if it fails midway.
pub(super) async fn cancel(
    context: &Context,
    roots: &[Uuid],
    reason: &str,
    all: &mut CancelledRuns,
) -> Result<()> {
    if roots.is_empty() {
        return Ok(());
    }
    let mut effects = StopEffects::default();
    let done = stop_descendants(context, roots, reason, all, &mut effects).await;
    let ended: HashSet<RunId> = all.ended.iter().copied().collect();
    effects.parents.retain(|parent| !ended.contains(parent));
    all.changes.extend(park::resume_all_ready(context, &effects.parents).await);
    done
}

/// Like [`cancel`], for descendants of runs that were already cancelled: an error is only logged, because the caller's
/// cancellation is committed. A failure delays the rest: the worker that ends a run cancels its children, and so does
/// [`stop_orphans`].
pub(super) async fn cancel_best_effort(
    context: &Context,
    roots: &[Uuid],
    reason: &str,
    all: &mut CancelledRuns,
) {
    if let Err(error) = cancel(context, roots, reason, all).await {
        tracing::warn!(error = error.chain(), "cancelling descendants failed; the reconciler will retry");
    }
}

async fn stop_descendants(
    context: &Context,
    roots: &[Uuid],
    reason: &str,
    all: &mut CancelledRuns,
    effects: &mut StopEffects,
) -> Result<()> {
    let sql = format!(
        "WITH RECURSIVE tree (id, level) AS \
         (SELECT id, 1 FROM runs WHERE parent_run {AMONG_1} AND parent_run IS NOT NULL \
         UNION ALL SELECT r.id, t.level + 1 FROM tree t JOIN runs r ON r.parent_run = t.id) \
         SELECT r.id, r.session_id FROM tree t JOIN runs r ON r.id = t.id WHERE r.state + 0 < 10 ORDER BY t.level, r.id"
    );
    let mut requested: HashSet<Uuid> = HashSet::new();
    loop {
        let live: Vec<Member> = query_as(AssertSqlSafe(sql.clone()))
            .bind(id_list(roots)?)
            .fetch_all(&context.reader)
            .await
            .map_err(db)?;
        // An executing run may have created more children meanwhile. Those it creates later are cancelled when it ends.
        let new: Vec<Member> = live.into_iter().filter(|(run, _)| requested.insert(*run)).collect();
        if new.is_empty() {
            return Ok(());
        }
        for some in new.chunks(RUNS_AT_ONCE) {
            stop(context, some, reason, all, effects).await?;
        }
    }
}

async fn stop(
    context: &Context,
    members: &[Member],
    reason: &str,
    all: &mut CancelledRuns,
    effects: &mut StopEffects,
) -> Result<()> {
    let mut tx = dialect::begin(&context.writer).await?;
    let sessions = members.iter().map(|(_, session)| *session);
    let (mut locked, _) = lock_with_leases(&mut tx, sessions, std::iter::empty()).await?;
    let ids: Vec<Uuid> = members.iter().map(|(run, _)| *run).collect();
    let live = runs::live_among(&mut tx, &ids).await?;
    let stopped = cancel::stop_runs(tx, context, &mut locked, live, reason, effects).await?;
    cancel::merge(all, stopped);
    Ok(())
}

/// Cancels every unfinished descendant of one run of a tenant.
pub(super) async fn cancel_children(
    context: &Context,
    tenant: TenantId,
    run: RunId,
    reason: &str,
) -> Result<CancelledRuns> {
    let mut connection = context.reader.acquire().await.map_err(db)?;
    runs::check_exists(&mut connection, tenant, run).await?;
    drop(connection);
    let mut all = CancelledRuns::default();
    cancel(context, &[run.as_uuid()], reason, &mut all).await?;
    Ok(all)
}

/// Scans runs that have a parent, and cancels those whose parent has ended, with their descendants. Skips runs that
/// execute and were already asked to cancel.
pub(super) async fn stop_orphans(
    context: &Context,
    after: Option<RunId>,
    limit: u32,
) -> Result<ScanPage<CancelledRuns>> {
    let page: Vec<(Uuid, Uuid, bool)> = query_as(
        "SELECT c.id, c.session_id, c.cancel_at IS NULL AND coalesce(p.state, 0) >= 10 FROM \
         (SELECT id, session_id, parent_run, cancel_at FROM runs \
         WHERE parent_run IS NOT NULL AND state < 10 AND id > $1 ORDER BY id LIMIT $2) c \
         LEFT JOIN runs p ON p.id = c.parent_run ORDER BY c.id",
    )
    .bind(after.map_or(Uuid::nil(), RunId::as_uuid))
    .bind(i64::from(limit))
    .fetch_all(&context.reader)
    .await
    .map_err(db)?;
    let orphans = page.iter().filter(|(.., is_orphan)| *is_orphan);
    let orphans: Vec<Member> = orphans.map(|(run, session, _)| (*run, *session)).collect();
    let (mut all, mut effects) = (CancelledRuns::default(), StopEffects::default());
    for some in orphans.chunks(RUNS_AT_ONCE) {
        if let Err(error) = stop(context, some, ORPHANED, &mut all, &mut effects).await {
            tracing::warn!(error = error.chain(), "cancelling orphans failed; the next round will retry");
        }
    }
    let ids: Vec<Uuid> = orphans.iter().map(|(run, _)| *run).collect();
    cancel_best_effort(context, &ids, ORPHANED, &mut all).await;
    Ok(ScanPage::new(all, page.iter().map(|(run, ..)| *run), limit))
}
