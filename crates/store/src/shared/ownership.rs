//! What workers do to sessions they own.

use std::{collections::HashSet, sync::Weak};

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
    recover::{self, Parting},
    store::{ClaimRequest, Context, SqlStore},
    writes::{self, Writes},
};
use crate::{
    Claim, Commit, Committed, Ownership, Seats, SessionChange, error::db, rows::WORKER_GONE, time::DbTime,
};

#[async_trait]
impl Ownership for SqlStore {
    async fn claim(&self, tenant: TenantId, session: SessionId, worker: WorkerId) -> Result<Claim> {
        self.lanes.claims.call(ClaimRequest { tenant, session, worker }).await
    }

    async fn commit(&self, commit: Commit) -> Result<Committed> {
        self.context.meters.fenced(self.lanes.commits.call(commit).await)
    }

    async fn release(&self, fence: Fence) -> Result<SessionChange> {
        let context = self.context.clone();
        self.context.meters.fenced(self.to_the_end(async move { release(&context, &fence).await }).await)
    }

    async fn cancel_delivered(&self, fence: Fence, run: RunId) -> Result<Appended> {
        let context = self.context.clone();
        self.to_the_end(async move { cancel_delivered(&context, &fence, run).await }).await
    }

    async fn is_runnable(&self, tenant: TenantId, session: SessionId) -> Result<bool> {
        self.lanes.session_looks.call(SessionLook { tenant, session }).await
    }

    fn stand_by(&self, seats: Weak<dyn Seats>) {
        self.context.post.take(seats);
    }
}

/// Which session somebody wants to know to be runnable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionLook {
    tenant: TenantId,
    session: SessionId,
}

/// Looks at sessions for many callers at once.
pub(crate) async fn look_at_sessions(
    connection: &mut Connection,
    batch: &[SessionLook],
) -> Result<Vec<Result<bool>>> {
    let ids: HashSet<Uuid> = batch.iter().map(|look| look.session.as_uuid()).collect();
    let ids: Vec<Uuid> = ids.into_iter().collect();
    let sql = format!(
        "SELECT s.id, s.tenant_id FROM sessions s WHERE s.id {AMONG_1} AND s.pending > 0 \
         AND NOT EXISTS (SELECT 1 FROM workers w WHERE w.id = s.owner AND w.state < {WORKER_GONE} AND w.lease_until > {NOW}) \
         AND 0 = (SELECT r.state FROM runs r WHERE r.session_id = s.id AND r.state < 10 ORDER BY r.seq LIMIT 1)"
    );
    let runnable: Vec<(Uuid, Uuid)> =
        query_as(AssertSqlSafe(sql)).bind(id_list(&ids)?).fetch_all(connection).await.map_err(db)?;
    let runnable: HashSet<(Uuid, Uuid)> = runnable.into_iter().collect();
    let is_among = |look: &SessionLook| runnable.contains(&(look.session.as_uuid(), look.tenant.as_uuid()));
    Ok(batch.iter().map(|look| Ok(is_among(look))).collect())
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
    let mut writes = Writes::default();
    let parted =
        recover::part(context, head, current.remove(&id), Parting::HandedOver, locked.at, &mut writes)?;
    let change = recover::change(head, parted.events);
    let news = std::mem::take(&mut writes.news);
    let counts = writes.write(&mut tx).await?;
    writes::save(&mut tx, &locked.heads, [id]).await?;
    tx.commit().await.map_err(db)?;
    context.tally.add(counts);
    context.meters.tell(news);
    Ok(change)
}

async fn cancel_delivered(context: &Context, fence: &Fence, run: RunId) -> Result<Appended> {
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
    let mut writes = Writes::default();
    let events = writes.append(head, vec![NewEvent { run: Some(run), at: locked.at, body }])?;
    writes.write(&mut tx).await?;
    writes::save(&mut tx, &locked.heads, [id]).await?;
    tx.commit().await.map_err(db)?;
    Ok(events)
}
