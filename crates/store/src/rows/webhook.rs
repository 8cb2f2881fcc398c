//! Webhook and dead letter rows.

use std::time::Duration;

use remuda_domain::{
    DeliveryId, RunId, SessionId, TenantId, WebhookId,
    error::Result,
    webhook::{DeadLetter, DeliveryFailure, EventFilter, Webhook, WebhookSecret},
};
use sqlx_macros::FromRow;
use uuid::Uuid;

use crate::{
    ActiveWebhook,
    error::{corrupt, parse},
    time::DbTime,
};

#[derive(Debug, FromRow)]
pub(crate) struct WebhookRow {
    pub(crate) id: Uuid,
    tenant_id: Uuid,
    session_id: Uuid,
    run_id: Option<Uuid>,
    url: String,
    types: String,
    state: String,
    cursor: i64,
    attempts: i32,
    next_attempt_at: Option<DbTime>,
    failure: Option<String>,
    failure_status: Option<i32>,
    delivered_at: Option<DbTime>,
    dropped: i64,
    previous_until: Option<DbTime>,
    created_at: DbTime,
    dead_letters: i64,
}

impl WebhookRow {
    pub(crate) fn into_webhook(self) -> Result<Webhook> {
        Ok(Webhook {
            id: WebhookId::from_uuid(self.id),
            tenant: TenantId::from_uuid(self.tenant_id),
            session: SessionId::from_uuid(self.session_id),
            run: self.run_id.map(RunId::from_uuid),
            url: self.url,
            types: filter(&self.types)?,
            state: self.state.parse().map_err(|_| corrupt("webhook"))?,
            cursor: self.cursor,
            attempts: count(self.attempts),
            next_attempt_at: self.next_attempt_at.map(|at| at.0),
            last_failure: self.failure.map(|message| failure(message, self.failure_status)),
            delivered_at: self.delivered_at.map(|at| at.0),
            dead_letters: u64::try_from(self.dead_letters).unwrap_or(0),
            dropped_dead_letters: u64::try_from(self.dropped).unwrap_or(0),
            previous_secret_until: self.previous_until.map(|at| at.0),
            created_at: self.created_at.0,
        })
    }
}

#[derive(Debug, FromRow)]
pub(crate) struct DeadLetterRow {
    webhook_id: Uuid,
    id: Uuid,
    event: String,
    attempts: i32,
    failure: String,
    failure_status: Option<i32>,
    died_at: DbTime,
    next_attempt_at: Option<DbTime>,
}

impl DeadLetterRow {
    pub(crate) fn into_dead_letter(self) -> Result<DeadLetter> {
        Ok(DeadLetter {
            id: DeliveryId::from_uuid(self.id),
            webhook: WebhookId::from_uuid(self.webhook_id),
            event: parse("event", &self.event)?,
            attempts: count(self.attempts),
            failure: failure(self.failure, self.failure_status),
            died_at: self.died_at.0,
            next_attempt_at: self.next_attempt_at.map(|at| at.0),
        })
    }
}

#[derive(Debug, FromRow)]
pub(crate) struct ActiveRow {
    id: Uuid,
    tenant_id: Uuid,
    session_id: Uuid,
    run_id: Option<Uuid>,
    types: String,
    due: bool,
}

impl ActiveRow {
    pub(crate) fn into_active(self) -> Result<ActiveWebhook> {
        Ok(ActiveWebhook {
            id: WebhookId::from_uuid(self.id),
            tenant: TenantId::from_uuid(self.tenant_id),
            session: SessionId::from_uuid(self.session_id),
            run: self.run_id.map(RunId::from_uuid),
            types: filter(&self.types)?,
            due: self.due,
        })
    }
}

/// The secrets of a webhook, which its public representation leaves out.
#[derive(FromRow)]
pub(crate) struct SecretRow {
    secret: Vec<u8>,
    /// Only while it is still valid.
    previous_secret: Option<Vec<u8>>,
    /// Microseconds until the next attempt.
    wait: Option<i64>,
}

impl SecretRow {
    pub(crate) fn wait(&self) -> Duration {
        Duration::from_micros(self.wait.and_then(|micros| u64::try_from(micros).ok()).unwrap_or(0))
    }

    pub(crate) fn into_secrets(self) -> Vec<WebhookSecret> {
        let previous = self.previous_secret.into_iter();
        std::iter::once(self.secret).chain(previous).map(WebhookSecret::from_bytes).collect()
    }
}

fn filter(types: &str) -> Result<EventFilter> {
    EventFilter::new(parse("webhook", types)?).map_err(|_| corrupt("webhook"))
}

fn count(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

fn failure(message: String, status: Option<i32>) -> DeliveryFailure {
    DeliveryFailure { status: status.and_then(|status| u16::try_from(status).ok()), message }
}
