//! Webhook deliveries: which webhooks have work, and the outcomes of attempts.

use async_trait::async_trait;
use remuda_domain::{
    WebhookId,
    error::Result,
    limits::MAX_DEAD_LETTERS,
    webhook::{DeadLetter, DeliveryFailure, WebhookState, delivery_id},
};
use sqlx::{AssertSqlSafe, query, query_as};
use uuid::Uuid;

use super::{
    dialect::{self, Connection, IN_MICROS_2, NOW},
    store::{Context, SqlStore},
    webhooks::{micros, secrets},
};
use crate::{
    ActiveWebhook, CursorAdvance, Deliveries, DeliveryOutcome, DeliveryReport, PendingDelivery,
    error::{db, json},
    rows::{ActiveRow, DeadLetterRow, WebhookRow},
};

fn status(failure: &DeliveryFailure) -> Option<i32> {
    failure.status.map(i32::from)
}

/// Advances a webhook's cursor if it is at the expected position. `then` contains further assignments.
async fn advance_cursor(
    connection: &mut Connection,
    webhook: Uuid,
    advance: CursorAdvance,
    then: &str,
) -> Result<bool> {
    let sql = format!(
        "UPDATE webhooks SET cursor = $3, attempts = 0, next_attempt_at = NULL, \
         state = CASE WHEN $4 AND state = 'active' THEN 'ended' ELSE state END{then} WHERE id = $1 AND cursor = $2"
    );
    let done = query(AssertSqlSafe(sql))
        .bind(webhook)
        .bind(advance.from)
        .bind(advance.to)
        .bind(advance.ended)
        .execute(connection)
        .await
        .map_err(db)?;
    Ok(done.rows_affected() == 1)
}

async fn record_failure(connection: &mut Connection, webhook: Uuid, failure: &DeliveryFailure) -> Result<()> {
    query("UPDATE webhooks SET failure = $2, failure_status = $3 WHERE id = $1")
        .bind(webhook)
        .bind(failure.message.as_str())
        .bind(status(failure))
        .execute(connection)
        .await
        .map_err(db)?;
    Ok(())
}

/// Inserts a dead letter, and drops the oldest ones above the limit.
async fn insert_dead_letter(connection: &mut Connection, letter: &NewDeadLetter<'_>) -> Result<()> {
    let NewDeadLetter { webhook, event, attempts, failure } = *letter;
    let sql = format!(
        "INSERT INTO dead_letters (webhook_id, cursor, id, event, attempts, failure, failure_status, died_at) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, {NOW})"
    );
    query(AssertSqlSafe(sql))
        .bind(webhook.as_uuid())
        .bind(event.cursor)
        .bind(delivery_id(webhook, event.id).as_uuid())
        .bind(json(event)?)
        .bind(i32::try_from(attempts).unwrap_or(i32::MAX))
        .bind(failure.message.as_str())
        .bind(status(failure))
        .execute(&mut *connection)
        .await
        .map_err(db)?;
    let dropped = query(
        "DELETE FROM dead_letters WHERE webhook_id = $1 AND cursor <= \
         (SELECT cursor FROM dead_letters WHERE webhook_id = $1 ORDER BY cursor DESC LIMIT 1 OFFSET $2)",
    )
    .bind(webhook.as_uuid())
    .bind(i64::from(MAX_DEAD_LETTERS))
    .execute(&mut *connection)
    .await
    .map_err(db)?;
    if dropped.rows_affected() > 0 {
        query("UPDATE webhooks SET dropped = dropped + $2 WHERE id = $1")
            .bind(webhook.as_uuid())
            .bind(i64::try_from(dropped.rows_affected()).unwrap_or(i64::MAX))
            .execute(connection)
            .await
            .map_err(db)?;
    }
    Ok(())
}

/// A dead letter to insert.
struct NewDeadLetter<'a> {
    webhook: WebhookId,
    event: &'a remuda_domain::Event,
    attempts: u32,
    failure: &'a DeliveryFailure,
}

async fn report(context: &Context, report: &DeliveryReport) -> Result<bool> {
    let mut tx = dialect::begin(&context.writer).await?;
    let webhook = report.webhook.as_uuid();
    let done = match &report.outcome {
        DeliveryOutcome::Advanced { advance, delivered: false } => {
            advance_cursor(&mut tx, webhook, *advance, "").await?
        }
        DeliveryOutcome::Advanced { advance, delivered: true } => {
            let then = format!(", delivered_at = {NOW}, failure = NULL, failure_status = NULL");
            advance_cursor(&mut tx, webhook, *advance, &then).await?
        }
        DeliveryOutcome::Failed { at, attempts_before, failure, retry_in } => {
            let sql = format!(
                "UPDATE webhooks SET attempts = attempts + 1, next_attempt_at = {IN_MICROS_2}, failure = $3, \
                 failure_status = $4 WHERE id = $1 AND cursor = $5 AND attempts = $6"
            );
            let done = query(AssertSqlSafe(sql))
                .bind(webhook)
                .bind(micros(*retry_in))
                .bind(failure.message.as_str())
                .bind(status(failure))
                .bind(*at)
                .bind(i32::try_from(*attempts_before).unwrap_or(i32::MAX))
                .execute(&mut *tx)
                .await
                .map_err(db)?;
            done.rows_affected() == 1
        }
        DeliveryOutcome::DeadLettered { advance, event, attempts, failure } => {
            let moved = advance_cursor(&mut tx, webhook, *advance, "").await?;
            if moved {
                record_failure(&mut tx, webhook, failure).await?;
                let letter = NewDeadLetter { webhook: report.webhook, event, attempts: *attempts, failure };
                insert_dead_letter(&mut tx, &letter).await?;
            }
            moved
        }
        DeliveryOutcome::ReceiverGone { at, failure } => {
            let done = query("UPDATE webhooks SET state = 'disabled' WHERE id = $1 AND cursor = $2")
                .bind(webhook)
                .bind(*at)
                .execute(&mut *tx)
                .await
                .map_err(db)?;
            record_failure(&mut tx, webhook, failure).await?;
            done.rows_affected() == 1
        }
        DeliveryOutcome::Redelivered { letter } => {
            let done = query("DELETE FROM dead_letters WHERE webhook_id = $1 AND cursor = $2")
                .bind(webhook)
                .bind(*letter)
                .execute(&mut *tx)
                .await
                .map_err(db)?;
            done.rows_affected() == 1
        }
        DeliveryOutcome::RedeliveryFailed { letter, attempts, failure, retry_in } => {
            let sql = format!(
                "UPDATE dead_letters SET attempts = $3, next_attempt_at = {IN_MICROS_2}, failure = $4, \
                 failure_status = $5 WHERE webhook_id = $1 AND cursor = $6 AND next_attempt_at IS NOT NULL"
            );
            let done = query(AssertSqlSafe(sql))
                .bind(webhook)
                .bind(retry_in.map(micros))
                .bind(i32::try_from(*attempts).unwrap_or(i32::MAX))
                .bind(failure.message.as_str())
                .bind(status(failure))
                .bind(*letter)
                .execute(&mut *tx)
                .await
                .map_err(db)?;
            done.rows_affected() == 1
        }
    };
    tx.commit().await.map_err(db)?;
    Ok(done)
}

/// The oldest dead letter that is due for redelivery.
async fn due_dead_letter(connection: &mut Connection, webhook: Uuid) -> Result<Option<DeadLetter>> {
    let sql = format!(
        concat!(
            "SELECT ",
            dead_letter_columns!(),
            " FROM dead_letters WHERE webhook_id = $1 AND next_attempt_at <= (SELECT {now}) ORDER BY cursor LIMIT 1"
        ),
        now = NOW
    );
    let row: Option<DeadLetterRow> =
        query_as(AssertSqlSafe(sql)).bind(webhook).fetch_optional(connection).await.map_err(db)?;
    row.map(DeadLetterRow::into_dead_letter).transpose()
}

#[async_trait]
impl Deliveries for SqlStore {
    async fn active_webhooks(&self, after: Option<WebhookId>, limit: u32) -> Result<Vec<ActiveWebhook>> {
        let sql = format!(
            "SELECT w.id, w.tenant_id, w.session_id, w.run_id, w.types, w.cursor < s.last_cursor \
             AND (w.next_attempt_at IS NULL OR w.next_attempt_at <= (SELECT {NOW})) AS due \
             FROM webhooks w JOIN sessions s ON s.id = w.session_id WHERE w.state = 'active' AND w.id > $1 \
             ORDER BY w.id LIMIT $2"
        );
        let rows: Vec<ActiveRow> = query_as(AssertSqlSafe(sql))
            .bind(after.map_or(Uuid::nil(), WebhookId::as_uuid))
            .bind(i64::from(limit))
            .fetch_all(&self.context.reader)
            .await
            .map_err(db)?;
        rows.into_iter().map(ActiveRow::into_active).collect()
    }

    async fn due_redeliveries(&self, limit: u32) -> Result<Vec<ActiveWebhook>> {
        let sql = format!(
            "SELECT DISTINCT w.id, w.tenant_id, w.session_id, w.run_id, w.types, TRUE AS due FROM dead_letters d \
             JOIN webhooks w ON w.id = d.webhook_id WHERE d.next_attempt_at <= (SELECT {NOW}) \
             AND d.next_attempt_at IS NOT NULL AND w.state <> 'disabled' LIMIT $1"
        );
        let rows: Vec<ActiveRow> = query_as(AssertSqlSafe(sql))
            .bind(i64::from(limit))
            .fetch_all(&self.context.reader)
            .await
            .map_err(db)?;
        rows.into_iter().map(ActiveRow::into_active).collect()
    }

    async fn pending_delivery(&self, webhook: WebhookId) -> Result<Option<PendingDelivery>> {
        let mut tx = dialect::snapshot(&self.context.reader).await?;
        let row: Option<WebhookRow> =
            query_as(concat!("SELECT ", webhook_columns!(), " FROM webhooks w WHERE w.id = $1"))
                .bind(webhook.as_uuid())
                .fetch_optional(&mut *tx)
                .await
                .map_err(db)?;
        let Some(row) = row else { return Ok(None) };
        let webhook = row.into_webhook()?;
        if webhook.state == WebhookState::Disabled {
            return Ok(None);
        }
        let id = webhook.id.as_uuid();
        let secrets = secrets(&mut tx, id).await?;
        let redelivery = due_dead_letter(&mut tx, id).await?;
        let wait = secrets.wait();
        Ok(Some(PendingDelivery { webhook, secrets: secrets.into_secrets(), wait, redelivery }))
    }

    async fn report_delivery(&self, what: &DeliveryReport) -> Result<bool> {
        let (context, what) = (self.context.clone(), what.clone());
        self.run_to_completion(async move { report(&context, &what).await }).await
    }
}
