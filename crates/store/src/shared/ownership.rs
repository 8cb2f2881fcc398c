//! Claims, commits and releases of sessions.

use std::collections::HashSet;

use async_trait::async_trait;
use remuda_domain::{
    Appended, Code, Error, EventBody, Fence, RunId, SessionId, TenantId, WorkerId, error::Result,
    event::NewEvent,
};
use sqlx::{AssertSqlSafe, query, query_as};
use uuid::Uuid;

use super::{
    dialect::{self, AMONG_1, Connection, NOW, id_list},
    lock::lock,
    placement,
    recover::{self, OwnershipEnd},
    store::{ClaimRequest, Context, SqlStore},
    write_set::WriteSet,
};
use crate::{Claim, Commit, Committed, Ownership, SessionChange, error::db, rows::WORKER_GONE, time::DbTime};

#[async_trait]
impl Ownership for SqlStore {
    async fn claim(&self, tenant: TenantId, session: SessionId, worker: WorkerId) -> Result<Claim> {
        let claim = self.coalescers.claims.call(ClaimRequest { tenant, session, worker }).await;
        self.context.disk_room.observe(claim)
    }

    async fn commit(&self, commit: Commit) -> Result<Committed> {
        let committed = self.context.disk_room.observe(self.coalescers.commits.call(commit).await);
        self.context.meters.count_fenced(committed)
    }

    async fn release(&self, fence: Fence) -> Result<SessionChange> {
        let context = self.context.clone();
        self.context
            .meters
            .count_fenced(self.run_to_completion(async move { release(&context, &fence).await }).await)
    }

    async fn mark_cancel_delivered(&self, fence: Fence, run: RunId) -> Result<Appended> {
        let context = self.context.clone();
        self.run_to_completion(async move { mark_cancel_delivered(&context, &fence, run).await }).await
    }

    async fn is_runnable(&self, tenant: TenantId, session: SessionId) -> Result<bool> {
        self.coalescers.runnable_checks.call(RunnableCheck { tenant, session }).await
    }
}

/// A request to check whether a session is runnable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunnableCheck {
    tenant: TenantId,
    session: SessionId,
}

/// Checks whether sessions are runnable, for many callers at once.
pub(crate) async fn check_runnable(
    connection: &mut Connection,
    batch: &[RunnableCheck],
) -> Result<Vec<Result<bool>>> {
    let ids: HashSet<Uuid> = batch.iter().map(|check| check.session.as_uuid()).collect();
    let ids: Vec<Uuid> = ids.into_iter().collect();
    let sql = format!(
        "SELECT s.id, s.tenant_id FROM sessions s WHERE s.id {AMONG_1} AND s.pending > 0 \
         AND NOT EXISTS (SELECT 1 FROM workers w WHERE w.id = s.owner AND w.state < {WORKER_GONE} AND w.lease_until > {NOW}) \
         AND 0 = (SELECT r.state FROM runs r WHERE r.session_id = s.id AND r.state < 10 ORDER BY r.seq LIMIT 1)"
    );
    let runnable: Vec<(Uuid, Uuid)> =
        query_as(AssertSqlSafe(sql)).bind(id_list(&ids)?).fetch_all(connection).await.map_err(db)?;
    let runnable: HashSet<(Uuid, Uuid)> = runnable.into_iter().collect();
    let is_among =
        |check: &RunnableCheck| runnable.contains(&(check.session.as_uuid(), check.tenant.as_uuid()));
    Ok(batch.iter().map(|check| Ok(is_among(check))).collect())
}

fn gone() -> Error {
    Error::new(Code::OwnershipLost, "the session is gone")
}

async fn release(context: &Context, fence: &Fence) -> Result<SessionChange> {
    let mut tx = dialect::begin(&context.writer).await?;
    let id = fence.session.as_uuid();
    let mut locked = lock(&mut tx, std::iter::once(id)).await?;
    let mut current = recover::current_runs(&mut tx, &locked.heads, &[id]).await?;
    let head = locked.heads.get_mut(&id).ok_or_else(gone)?;
    head.head.verify(fence)?;
    let mut writes = WriteSet::default();
    let ended_ownership = recover::end_ownership(
        context,
        head,
        current.remove(&id),
        OwnershipEnd::HandedOver,
        locked.at,
        &mut writes,
    )?;
    let change = placement::session_change(head, ended_ownership.events);
    writes.save_heads(&locked, [id]);
    writes.commit(context, tx).await?;
    Ok(change)
}

async fn mark_cancel_delivered(context: &Context, fence: &Fence, run: RunId) -> Result<Appended> {
    let mut tx = dialect::begin(&context.writer).await?;
    let id = fence.session.as_uuid();
    let mut locked = lock(&mut tx, std::iter::once(id)).await?;
    let head = locked.heads.get_mut(&id).ok_or_else(gone)?;
    head.head.verify(fence)?;
    if head.head.current != Some(run) {
        return Err(Error::new(Code::OwnershipLost, "the run is no longer the session's current one"));
    }
    let noted = query(
        "UPDATE runs SET cancel_delivered_at = $2 \
         WHERE id = $1 AND cancel_at IS NOT NULL AND cancel_delivered_at IS NULL",
    )
    .bind(run.as_uuid())
    .bind(DbTime(locked.at))
    .execute(&mut *tx)
    .await
    .map_err(db)?;
    if noted.rows_affected() == 0 {
        return Ok(Appended::default());
    }
    let body = EventBody::RunCancelDelivered { worker: fence.worker };
    let mut writes = WriteSet::default();
    let events = writes.append(head, vec![NewEvent { run: Some(run), at: locked.at, body }])?;
    writes.save_heads(&locked, [id]);
    writes.commit(context, tx).await?;
    Ok(events)
}
