//! Records of sandboxes: containers and other execution environments, with their owners.

use async_trait::async_trait;
use remuda_domain::{
    SandboxId, SessionId, TenantId, WorkerId,
    error::Result,
    execution::{BackendKind, Holder, SandboxRecord, SandboxState},
};
use sqlx::{query, query_as, query_scalar};
use sqlx_macros::FromRow;
use uuid::Uuid;

use super::{
    dialect,
    store::{Context, SqlStore},
};
use crate::{
    Sandboxes,
    error::{corrupt, db},
    time::DbTime,
};

#[derive(FromRow)]
struct SandboxRow {
    id: Uuid,
    worker_id: Uuid,
    tenant_id: Option<Uuid>,
    session_id: Option<Uuid>,
    epoch: Option<i64>,
    backend: String,
    engine: String,
    handle: Option<String>,
    image: String,
    digest: String,
    state: String,
    created_at: DbTime,
    used_at: DbTime,
}

impl SandboxRow {
    fn into_record(self) -> Result<SandboxRecord> {
        let holder = match (self.tenant_id, self.session_id, self.epoch) {
            (Some(tenant), Some(session), Some(epoch)) => {
                let (tenant, session) = (TenantId::from_uuid(tenant), SessionId::from_uuid(session));
                Some(Holder { tenant, session, epoch })
            }
            _ => None,
        };
        Ok(SandboxRecord {
            id: SandboxId::from_uuid(self.id),
            holder,
            worker: WorkerId::from_uuid(self.worker_id),
            backend: BackendKind::parse("backend", &self.backend).map_err(|_| corrupt("sandbox"))?,
            engine: self.engine,
            handle: self.handle,
            image: self.image,
            digest: self.digest,
            state: SandboxState::parse(&self.state).ok_or_else(|| corrupt("sandbox"))?,
            created_at: self.created_at.0,
            used_at: self.used_at.0,
        })
    }
}

async fn save(context: &Context, record: &SandboxRecord) -> Result<()> {
    query(
        "INSERT INTO sandboxes (id, worker_id, tenant_id, session_id, epoch, backend, engine, handle, image, digest, state, \
         created_at, used_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) \
         ON CONFLICT (id) DO UPDATE SET tenant_id = excluded.tenant_id, session_id = excluded.session_id, \
         epoch = excluded.epoch, handle = excluded.handle, digest = excluded.digest, state = excluded.state, \
         used_at = excluded.used_at",
    )
    .bind(record.id.as_uuid())
    .bind(record.worker.as_uuid())
    .bind(record.holder.map(|holder| holder.tenant.as_uuid()))
    .bind(record.holder.map(|holder| holder.session.as_uuid()))
    .bind(record.holder.map(|holder| holder.epoch))
    .bind(record.backend.as_str())
    .bind(record.engine.as_str())
    .bind(record.handle.as_deref())
    .bind(record.image.as_str())
    .bind(record.digest.as_str())
    .bind(record.state.as_str())
    .bind(DbTime(record.created_at))
    .bind(DbTime(record.used_at))
    .execute(&mut *dialect::write_connection(&context.writer).await?)
    .await
    .map_err(db)?;
    Ok(())
}

async fn forget(context: &Context, id: SandboxId) -> Result<()> {
    query("DELETE FROM sandboxes WHERE id = $1")
        .bind(id.as_uuid())
        .execute(&mut *dialect::write_connection(&context.writer).await?)
        .await
        .map_err(db)?;
    Ok(())
}

#[async_trait]
impl Sandboxes for SqlStore {
    async fn save_sandbox(&self, record: &SandboxRecord) -> Result<()> {
        let (context, record) = (self.context.clone(), record.clone());
        self.run_to_completion(async move { save(&context, &record).await }).await
    }

    async fn forget_sandbox(&self, id: SandboxId) -> Result<()> {
        let context = self.context.clone();
        self.run_to_completion(async move { forget(&context, id).await }).await
    }

    async fn list_sandboxes(&self, limit: u32) -> Result<Vec<SandboxRecord>> {
        let rows: Vec<SandboxRow> = query_as(
            "SELECT id, worker_id, tenant_id, session_id, epoch, backend, engine, handle, image, digest, state, \
             created_at, used_at FROM sandboxes ORDER BY id DESC LIMIT $1",
        )
        .bind(i64::from(limit))
        .fetch_all(&self.context.reader)
        .await
        .map_err(db)?;
        rows.into_iter().map(SandboxRow::into_record).collect()
    }

    async fn count_sandboxes(&self) -> Result<Vec<(BackendKind, SandboxState, u64)>> {
        let sql = "SELECT backend, state, count(*) FROM sandboxes GROUP BY backend, state";
        let rows: Vec<(String, String, i64)> =
            query_as(sql).fetch_all(&self.context.reader).await.map_err(db)?;
        let counted = |(backend, state, count): (String, String, i64)| {
            let backend = BackendKind::parse("backend", &backend).map_err(|_| corrupt("sandbox"))?;
            let state = SandboxState::parse(&state).ok_or_else(|| corrupt("sandbox"))?;
            Ok((backend, state, u64::try_from(count).unwrap_or(0)))
        };
        rows.into_iter().map(counted).collect()
    }

    async fn installation(&self) -> Result<String> {
        let id: Uuid =
            query_scalar("SELECT id FROM installation").fetch_one(&self.context.reader).await.map_err(db)?;
        Ok(id.simple().to_string())
    }
}
