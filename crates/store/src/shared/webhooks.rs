//! Webhooks: creating, listing, changing and redelivering.

use std::time::Duration;

use async_trait::async_trait;
use remuda_domain::{
    Code, Cursor, DeliveryId, Error, SessionId, TenantId, WebhookId,
    error::Result,
    limits::MAX_WEBHOOKS,
    page::{Page, PageRequest},
    webhook::{DeadLetter, Webhook, WebhookSecret, WebhookState},
};
use sqlx::{AssertSqlSafe, QueryBuilder, query, query_as, query_scalar};
use uuid::Uuid;

use super::{
    dialect::{self, ATTEMPT_LEFT, Connection, Db, IN_MICROS_2, NOW},
    lock::lock,
    runs::run_not_found,
    store::{Context, SqlStore},
    submit::session_not_found,
};
use crate::{
    NewWebhook, WebhookTarget, Webhooks,
    error::{db, json},
    rows::{DeadLetterRow, SecretRow, WebhookRow},
    time::DbTime,
};

/// Ended webhooks of a session that are kept.
const MAX_ENDED_WEBHOOKS: i64 = 16;

fn not_found() -> Error {
    Error::new(Code::WebhookNotFound, "there is no such webhook")
}

pub(super) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

async fn load(connection: &mut Connection, tenant: TenantId, webhook: WebhookId) -> Result<Webhook> {
    let row: Option<WebhookRow> = query_as(concat!(
        "SELECT ",
        webhook_columns!(),
        " FROM webhooks w WHERE w.id = $1 AND w.tenant_id = $2"
    ))
    .bind(webhook.as_uuid())
    .bind(tenant.as_uuid())
    .fetch_optional(connection)
    .await
    .map_err(db)?;
    row.ok_or_else(not_found)?.into_webhook()
}

/// The secrets of a webhook, and the time until its next attempt.
pub(super) async fn secrets(connection: &mut Connection, webhook: Uuid) -> Result<SecretRow> {
    let sql = format!(
        "SELECT secret, CASE WHEN previous_until > {NOW} THEN previous_secret END AS previous_secret, \
         {ATTEMPT_LEFT} AS wait FROM webhooks WHERE id = $1"
    );
    let row = query_as(AssertSqlSafe(sql)).bind(webhook).fetch_optional(connection).await.map_err(db)?;
    row.ok_or_else(not_found)
}

/// The session and run that a webhook refers to.
async fn resolve_target(
    connection: &mut Connection,
    tenant: TenantId,
    target: WebhookTarget,
) -> Result<(Uuid, Option<Uuid>)> {
    let (sql, id) = match target {
        WebhookTarget::Session(session) => {
            ("SELECT id FROM sessions WHERE id = $1 AND tenant_id = $2", session.as_uuid())
        }
        WebhookTarget::Run(run) => {
            ("SELECT session_id FROM runs WHERE id = $1 AND tenant_id = $2", run.as_uuid())
        }
    };
    let found: Option<Uuid> =
        query_scalar(sql).bind(id).bind(tenant.as_uuid()).fetch_optional(connection).await.map_err(db)?;
    match target {
        WebhookTarget::Session(_) => Ok((found.ok_or_else(session_not_found)?, None)),
        WebhookTarget::Run(_) => Ok((found.ok_or_else(run_not_found)?, Some(id))),
    }
}

async fn create(context: &Context, new: &NewWebhook) -> Result<Webhook> {
    let mut tx = dialect::begin(&context.writer).await?;
    let (session, run) = resolve_target(&mut tx, new.tenant, new.target).await?;
    // The lock serializes concurrent creations, so that the count below is right.
    let locked = lock(&mut tx, std::iter::once(session)).await?;
    let head = locked.heads.get(&session).ok_or_else(session_not_found)?;
    enforce_limits(&mut tx, session).await?;
    // A run's webhook starts at the beginning and skips events before the run.
    let cursor = if run.is_some() { 0 } else { head.head.last_cursor };
    query(
        "INSERT INTO webhooks (id, tenant_id, session_id, run_id, url, types, secret, state, cursor, created_at) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, 'active', $8, $9)",
    )
    .bind(new.id.as_uuid())
    .bind(new.tenant.as_uuid())
    .bind(session)
    .bind(run)
    .bind(new.url.as_str())
    .bind(json(new.types.as_slice())?)
    .bind(new.secret.as_bytes())
    .bind(cursor)
    .bind(DbTime(locked.at))
    .execute(&mut *tx)
    .await
    .map_err(db)?;
    let webhook = load(&mut tx, new.tenant, new.id).await?;
    tx.commit().await.map_err(db)?;
    Ok(webhook)
}

/// Fails if the session has the maximum number of webhooks, and deletes the oldest ended ones. The caller holds the
/// session's lock.
async fn enforce_limits(connection: &mut Connection, session: Uuid) -> Result<()> {
    let live: i64 = query_scalar("SELECT count(*) FROM webhooks WHERE session_id = $1 AND state <> 'ended'")
        .bind(session)
        .fetch_one(&mut *connection)
        .await
        .map_err(db)?;
    if usize::try_from(live).is_ok_and(|live| live >= MAX_WEBHOOKS) {
        let message = format!("the session has {live} webhooks, and may have {MAX_WEBHOOKS}: delete one");
        return Err(Error::new(Code::WebhookLimit, message));
    }
    let ended: Vec<Uuid> = query_scalar(
        "SELECT id FROM webhooks WHERE session_id = $1 AND state = 'ended' ORDER BY id DESC LIMIT 100 OFFSET $2",
    )
    .bind(session)
    .bind(MAX_ENDED_WEBHOOKS - 1)
    .fetch_all(&mut *connection)
    .await
    .map_err(db)?;
    for webhook in ended {
        delete_rows(connection, webhook).await?;
    }
    Ok(())
}

async fn delete_rows(connection: &mut Connection, webhook: Uuid) -> Result<()> {
    for sql in ["DELETE FROM webhooks WHERE id = $1", "DELETE FROM dead_letters WHERE webhook_id = $1"] {
        query(sql).bind(webhook).execute(&mut *connection).await.map_err(db)?;
    }
    Ok(())
}

async fn delete(context: &Context, tenant: TenantId, webhook: WebhookId) -> Result<()> {
    let mut tx = dialect::begin(&context.writer).await?;
    load(&mut tx, tenant, webhook).await?;
    delete_rows(&mut tx, webhook.as_uuid()).await?;
    tx.commit().await.map_err(db)
}

async fn enable(context: &Context, tenant: TenantId, webhook: WebhookId, enabled: bool) -> Result<Webhook> {
    let mut tx = dialect::begin(&context.writer).await?;
    let sql = if enabled {
        "UPDATE webhooks SET state = 'active', attempts = 0, next_attempt_at = NULL, failure = NULL, \
         failure_status = NULL WHERE id = $1 AND tenant_id = $2 AND state = 'disabled'"
    } else {
        "UPDATE webhooks SET state = 'disabled' WHERE id = $1 AND tenant_id = $2 AND state = 'active'"
    };
    query(sql).bind(webhook.as_uuid()).bind(tenant.as_uuid()).execute(&mut *tx).await.map_err(db)?;
    let webhook = load(&mut tx, tenant, webhook).await?;
    tx.commit().await.map_err(db)?;
    Ok(webhook)
}

async fn rotate(
    context: &Context,
    tenant: TenantId,
    webhook: WebhookId,
    secret: &WebhookSecret,
    keep: Duration,
) -> Result<Webhook> {
    let mut tx = dialect::begin(&context.writer).await?;
    let sql = format!(
        "UPDATE webhooks SET previous_secret = secret, previous_until = {IN_MICROS_2}, secret = $3 \
         WHERE id = $1 AND tenant_id = $4"
    );
    query(AssertSqlSafe(sql))
        .bind(webhook.as_uuid())
        .bind(micros(keep))
        .bind(secret.as_bytes())
        .bind(tenant.as_uuid())
        .execute(&mut *tx)
        .await
        .map_err(db)?;
    let webhook = load(&mut tx, tenant, webhook).await?;
    tx.commit().await.map_err(db)?;
    Ok(webhook)
}

async fn redeliver(
    context: &Context,
    tenant: TenantId,
    webhook: WebhookId,
    letter: Option<DeliveryId>,
) -> Result<u64> {
    let mut tx = dialect::begin(&context.writer).await?;
    let found = load(&mut tx, tenant, webhook).await?;
    if found.state == WebhookState::Disabled {
        return Err(Error::new(Code::WebhookDisabled, "the webhook is disabled: enable it first"));
    }
    let mut sql: QueryBuilder<Db> = QueryBuilder::new(format!(
        "UPDATE dead_letters SET attempts = 0, next_attempt_at = {NOW} WHERE webhook_id = "
    ));
    sql.push_bind(webhook.as_uuid());
    if let Some(letter) = letter {
        sql.push(" AND id = ").push_bind(letter.as_uuid());
    }
    let scheduled = sql.build().execute(&mut *tx).await.map_err(db)?.rows_affected();
    if letter.is_some() && scheduled == 0 {
        return Err(Error::new(Code::DeadLetterNotFound, "the webhook has no such dead letter"));
    }
    tx.commit().await.map_err(db)?;
    Ok(scheduled)
}

#[async_trait]
impl Webhooks for SqlStore {
    async fn create_webhook(&self, webhook: &NewWebhook) -> Result<Webhook> {
        let (context, new) = (self.context.clone(), webhook.clone());
        self.run_to_completion(async move { create(&context, &new).await }).await
    }

    async fn get_webhook(&self, tenant: TenantId, webhook: WebhookId) -> Result<Webhook> {
        let mut connection = self.context.reader.acquire().await.map_err(db)?;
        load(&mut connection, tenant, webhook).await
    }

    async fn list_webhooks(
        &self,
        tenant: TenantId,
        session: Option<SessionId>,
        page: &PageRequest,
    ) -> Result<Page<Webhook>> {
        let mut sql: QueryBuilder<Db> = QueryBuilder::new(concat!(
            "SELECT ",
            webhook_columns!(),
            " FROM webhooks w WHERE w.tenant_id = "
        ));
        sql.push_bind(tenant.as_uuid());
        if let Some(session) = session {
            sql.push(" AND w.session_id = ").push_bind(session.as_uuid());
        }
        if let Some(after) = page.after::<WebhookId>()? {
            sql.push(" AND w.id < ").push_bind(after.as_uuid());
        }
        sql.push(" ORDER BY w.id DESC LIMIT ").push_bind(i64::from(page.size) + 1);
        let rows: Vec<WebhookRow> = sql.build_query_as().fetch_all(&self.context.reader).await.map_err(db)?;
        let webhooks = rows.into_iter().map(WebhookRow::into_webhook).collect::<Result<Vec<_>>>()?;
        Ok(Page::from_rows(webhooks, page.size, |webhook| webhook.id.to_string()))
    }

    async fn delete_webhook(&self, tenant: TenantId, webhook: WebhookId) -> Result<()> {
        let context = self.context.clone();
        self.run_to_completion(async move { delete(&context, tenant, webhook).await }).await
    }

    async fn enable_webhook(&self, tenant: TenantId, webhook: WebhookId, enabled: bool) -> Result<Webhook> {
        let context = self.context.clone();
        self.run_to_completion(async move { enable(&context, tenant, webhook, enabled).await }).await
    }

    async fn rotate_webhook(
        &self,
        tenant: TenantId,
        webhook: WebhookId,
        secret: &WebhookSecret,
        keep: Duration,
    ) -> Result<Webhook> {
        let (context, secret) = (self.context.clone(), secret.clone());
        self.run_to_completion(async move { rotate(&context, tenant, webhook, &secret, keep).await }).await
    }

    async fn webhook_secrets(&self, tenant: TenantId, webhook: WebhookId) -> Result<Vec<WebhookSecret>> {
        let mut connection = self.context.reader.acquire().await.map_err(db)?;
        load(&mut connection, tenant, webhook).await?;
        Ok(secrets(&mut connection, webhook.as_uuid()).await?.into_secrets())
    }

    async fn list_dead_letters(
        &self,
        tenant: TenantId,
        webhook: WebhookId,
        page: &PageRequest,
    ) -> Result<Page<DeadLetter>> {
        self.get_webhook(tenant, webhook).await?;
        let mut sql: QueryBuilder<Db> = QueryBuilder::new(concat!(
            "SELECT ",
            dead_letter_columns!(),
            " FROM dead_letters WHERE webhook_id = "
        ));
        sql.push_bind(webhook.as_uuid());
        if let Some(after) = page.after::<Cursor>()? {
            sql.push(" AND cursor < ").push_bind(after);
        }
        sql.push(" ORDER BY cursor DESC LIMIT ").push_bind(i64::from(page.size) + 1);
        let rows: Vec<DeadLetterRow> =
            sql.build_query_as().fetch_all(&self.context.reader).await.map_err(db)?;
        let letters = rows.into_iter().map(DeadLetterRow::into_dead_letter).collect::<Result<Vec<_>>>()?;
        Ok(Page::from_rows(letters, page.size, |letter| letter.event.cursor.to_string()))
    }

    async fn redeliver(
        &self,
        tenant: TenantId,
        webhook: WebhookId,
        letter: Option<DeliveryId>,
    ) -> Result<u64> {
        let context = self.context.clone();
        self.run_to_completion(async move { redeliver(&context, tenant, webhook, letter).await }).await
    }
}
