//! Tenants and API keys.

use async_trait::async_trait;
use remuda_domain::{
    ApiKeyId, Code, Error, TenantId, WorkspaceId,
    error::Result,
    identity::{ApiKey, Scope, Tenant},
};
use sqlx::{QueryBuilder, query, query_as};

use super::{
    dialect::{self, Connection, Db},
    store::{Context, SqlStore},
};
use crate::{
    Identity, KeyOwner, NewKey,
    error::{corrupt, db},
    rows::{KeyRow, TenantRow},
    time::{DbTime, now},
};

macro_rules! key_columns {
    () => {
        "id, tenant_id, name, scopes, created_at, expires_at, revoked_at"
    };
}

async fn find_tenant(connection: &mut Connection, name: &str) -> Result<Option<Tenant>> {
    let row: Option<TenantRow> = query_as("SELECT id, name, created_at FROM tenants WHERE name = $1")
        .bind(name)
        .fetch_optional(connection)
        .await
        .map_err(db)?;
    Ok(row.map(Into::into))
}

async fn get_tenant(connection: &mut Connection, tenant: TenantId) -> Result<Tenant> {
    let row: Option<TenantRow> = query_as("SELECT id, name, created_at FROM tenants WHERE id = $1")
        .bind(tenant.as_uuid())
        .fetch_optional(connection)
        .await
        .map_err(db)?;
    row.map(Into::into).ok_or_else(|| Error::new(Code::TenantNotFound, "there is no such tenant"))
}

async fn ensure_tenant(context: &Context, name: &str, root: &str) -> Result<Tenant> {
    let mut tx = dialect::begin(&context.writer).await?;
    query("INSERT INTO tenants (id, name, created_at) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING")
        .bind(TenantId::new().as_uuid())
        .bind(name)
        .bind(DbTime(now()))
        .execute(&mut *tx)
        .await
        .map_err(db)?;
    let tenant = find_tenant(&mut tx, name).await?.ok_or_else(|| corrupt("tenant"))?;
    query(
        "INSERT INTO workspaces (id, tenant_id, name, root, created_at) VALUES ($1, $2, 'default', $3, $4) \
         ON CONFLICT DO NOTHING",
    )
    .bind(WorkspaceId::new().as_uuid())
    .bind(tenant.id.as_uuid())
    .bind(root)
    .bind(DbTime(now()))
    .execute(&mut *tx)
    .await
    .map_err(db)?;
    tx.commit().await.map_err(db)?;
    Ok(tenant)
}

async fn create_key(context: &Context, key: &NewKey) -> Result<ApiKey> {
    Scope::check_key(&key.scopes, key.tenant.is_some())?;
    let scopes: Vec<&str> = key.scopes.iter().copied().map(Scope::as_str).collect();
    let row: KeyRow = query_as(concat!(
        "INSERT INTO api_keys (id, tenant_id, name, secret_hash, scopes, created_at, expires_at) \
         VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING ",
        key_columns!()
    ))
    .bind(ApiKeyId::new().as_uuid())
    .bind(key.tenant.map(TenantId::as_uuid))
    .bind(key.name.as_str())
    .bind(key.secret_hash.as_slice())
    .bind(scopes.join(" "))
    .bind(DbTime(now()))
    .bind(key.expires_at.map(DbTime))
    .fetch_one(&mut *dialect::write_connection(&context.writer).await?)
    .await
    .map_err(db)?;
    row.into_key()
}

async fn revoke_key(context: &Context, keys: KeyOwner, key: ApiKeyId) -> Result<ApiKey> {
    let mut sql: QueryBuilder<Db> =
        QueryBuilder::new("UPDATE api_keys SET revoked_at = coalesce(revoked_at, ");
    sql.push_bind(DbTime(now())).push(") WHERE id = ").push_bind(key.as_uuid());
    if let KeyOwner::Tenant(tenant) = keys {
        sql.push(" AND tenant_id = ").push_bind(tenant.as_uuid());
    }
    sql.push(concat!(" RETURNING ", key_columns!()));
    let row: Option<KeyRow> = sql
        .build_query_as()
        .fetch_optional(&mut *dialect::write_connection(&context.writer).await?)
        .await
        .map_err(db)?;
    row.ok_or_else(|| Error::new(Code::KeyNotFound, "there is no such key"))?.into_key()
}

#[async_trait]
impl Identity for SqlStore {
    async fn ensure_tenant(&self, name: &str, root: &str) -> Result<Tenant> {
        let (context, name, root) = (self.context.clone(), name.to_owned(), root.to_owned());
        self.run_to_completion(async move { ensure_tenant(&context, &name, &root).await }).await
    }

    async fn find_tenant(&self, name: &str) -> Result<Option<Tenant>> {
        let mut connection = self.context.reader.acquire().await.map_err(db)?;
        find_tenant(&mut connection, name).await
    }

    async fn get_tenant(&self, tenant: TenantId) -> Result<Tenant> {
        let mut connection = self.context.reader.acquire().await.map_err(db)?;
        get_tenant(&mut connection, tenant).await
    }

    async fn create_key(&self, key: &NewKey) -> Result<ApiKey> {
        let (context, key) = (self.context.clone(), key.clone());
        self.run_to_completion(async move { create_key(&context, &key).await }).await
    }

    async fn find_key(&self, secret_hash: &[u8; 32]) -> Result<Option<ApiKey>> {
        let row: Option<KeyRow> = query_as(concat!(
            "SELECT ",
            key_columns!(),
            " FROM api_keys WHERE secret_hash = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $2)"
        ))
        .bind(secret_hash.as_slice())
        .bind(DbTime(now()))
        .fetch_optional(&self.context.reader)
        .await
        .map_err(db)?;
        row.map(KeyRow::into_key).transpose()
    }

    async fn list_keys(&self, keys: KeyOwner) -> Result<Vec<ApiKey>> {
        let mut sql: QueryBuilder<Db> =
            QueryBuilder::new(concat!("SELECT ", key_columns!(), " FROM api_keys"));
        if let KeyOwner::Tenant(tenant) = keys {
            sql.push(" WHERE tenant_id = ").push_bind(tenant.as_uuid());
        }
        sql.push(" ORDER BY id");
        let rows: Vec<KeyRow> = sql.build_query_as().fetch_all(&self.context.reader).await.map_err(db)?;
        rows.into_iter().map(KeyRow::into_key).collect()
    }

    async fn revoke_key(&self, keys: KeyOwner, key: ApiKeyId) -> Result<ApiKey> {
        let context = self.context.clone();
        self.run_to_completion(async move { revoke_key(&context, keys, key).await }).await
    }
}
