//! Stopping the runs below a run.
//!
//! The runs of a tree are in sessions of their own, so they are stopped some at a time, from the top down: who waits for others ends
//! before they do, and is not woken by it.

use std::collections::HashSet;

use remuda_domain::{RunId, TenantId, error::Result};
use sqlx::{AssertSqlSafe, query_as};
use uuid::Uuid;

use super::{
    cancel::{self, Family},
    dialect::{self, AMONG_1, id_list},
    lock::lock_with_leases,
    park, runs,
    store::Context,
};
use crate::{CancelledRuns, Swept, error::db};

/// Runs that are stopped in one transaction.
const RUNS_AT_ONCE: usize = 100;
/// Why orphans are stopped.
const ORPHANED: &str = "the run that it worked for has ended";

/// A run, and its session.
type Member = (Uuid, Uuid);

/// Asks for every unfinished run below these to stop, and adds what came of it, also if it fails midway.
pub(super) async fn cancel(
    context: &Context,
    roots: &[Uuid],
    reason: &str,
    all: &mut CancelledRuns,
) -> Result<()> {
    if roots.is_empty() {
        return Ok(());
    }
    let mut family = Family::default();
    let done = stop_below(context, roots, reason, all, &mut family).await;
    let ended: HashSet<RunId> = all.ended.iter().copied().collect();
    family.parents.retain(|parent| !ended.contains(parent));
    all.changes.extend(park::settle_all(context, &family.parents).await);
    done
}

/// The same for runs that were stopped before: that stands, and whoever asked for it has to hear of it. What fails here is only
/// late: whoever sees the end of a run stops those below it, and so does [`stop_orphans`].
pub(super) async fn cancel_or_leave(
    context: &Context,
    roots: &[Uuid],
    reason: &str,
    all: &mut CancelledRuns,
) {
    if let Err(error) = cancel(context, roots, reason, all).await {
        tracing::warn!(error = error.chain(), "runs below stopped ones are left to the next round");
    }
}

async fn stop_below(
    context: &Context,
    roots: &[Uuid],
    reason: &str,
    all: &mut CancelledRuns,
    family: &mut Family,
) -> Result<()> {
    let sql = format!(
        "WITH RECURSIVE tree (id, level) AS \
         (SELECT id, 1 FROM runs WHERE parent_run {AMONG_1} AND parent_run IS NOT NULL \
         UNION ALL SELECT r.id, t.level + 1 FROM tree t JOIN runs r ON r.parent_run = t.id) \
         SELECT r.id, r.session_id FROM tree t JOIN runs r ON r.id = t.id WHERE r.state + 0 < 10 ORDER BY t.level, r.id"
    );
    let mut asked: HashSet<Uuid> = HashSet::new();
    loop {
        let live: Vec<Member> = query_as(AssertSqlSafe(sql.clone()))
            .bind(id_list(roots)?)
            .fetch_all(&context.reader)
            .await
            .map_err(db)?;
        // A run that still executes may have made more in the meantime. What it makes later is for whoever sees its end.
        let new: Vec<Member> = live.into_iter().filter(|(run, _)| asked.insert(*run)).collect();
        if new.is_empty() {
            return Ok(());
        }
        for some in new.chunks(RUNS_AT_ONCE) {
            stop(context, some, reason, all, family).await?;
        }
    }
}

async fn stop(
    context: &Context,
    members: &[Member],
    reason: &str,
    all: &mut CancelledRuns,
    family: &mut Family,
) -> Result<()> {
    let mut tx = dialect::begin(&context.writer).await?;
    let sessions = members.iter().map(|(_, session)| *session);
    let (mut locked, _) = lock_with_leases(&mut tx, sessions, std::iter::empty()).await?;
    let ids: Vec<Uuid> = members.iter().map(|(run, _)| *run).collect();
    let live = runs::live_among(&mut tx, &ids).await?;
    let stopped = cancel::stop_runs(&mut tx, context, &mut locked, live, reason, family).await?;
    tx.commit().await.map_err(db)?;
    context.meters.tell(std::mem::take(&mut family.news));
    cancel::add(all, stopped);
    Ok(())
}

/// The same for one run of a tenant.
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

/// Looks at some runs that work for another one, and stops those whose parent is over, and what is below them. Who was asked before
/// and still executes knows.
pub(super) async fn stop_orphans(
    context: &Context,
    after: Option<RunId>,
    limit: u32,
) -> Result<Swept<CancelledRuns>> {
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
    let (mut all, mut family) = (CancelledRuns::default(), Family::default());
    for some in orphans.chunks(RUNS_AT_ONCE) {
        if let Err(error) = stop(context, some, ORPHANED, &mut all, &mut family).await {
            tracing::warn!(error = error.chain(), "orphans are left to the next round");
        }
    }
    let ids: Vec<Uuid> = orphans.iter().map(|(run, _)| *run).collect();
    cancel_or_leave(context, &ids, ORPHANED, &mut all).await;
    Ok(Swept::page(all, page.iter().map(|(run, ..)| *run), limit))
}
