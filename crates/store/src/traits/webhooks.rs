//! Webhooks, and what becomes of deliveries.

use std::time::Duration;

use async_trait::async_trait;
use remuda_domain::{
    Cursor, DeliveryId, Event, RunId, SessionId, TenantId, WebhookId,
    error::Result,
    page::{Page, PageRequest},
    webhook::{DeadLetter, DeliveryFailure, EventFilter, Webhook, WebhookSecret},
};

/// Webhooks of sessions and runs.
#[async_trait]
pub trait Webhooks {
    /// One of a session is told what happens from now on; one of a run all that happened and happens in it. Fails with
    /// `session_not_found`, `run_not_found` and `webhook_limit`. Of those that are over, only the newest are kept.
    async fn create_webhook(&self, webhook: &NewWebhook) -> Result<Webhook>;
    /// Fails with `webhook_not_found`.
    async fn get_webhook(&self, tenant: TenantId, webhook: WebhookId) -> Result<Webhook>;
    /// Newest first.
    async fn list_webhooks(
        &self,
        tenant: TenantId,
        session: Option<SessionId>,
        page: &PageRequest,
    ) -> Result<Page<Webhook>>;
    /// Deletes it with its dead letters.
    async fn delete_webhook(&self, tenant: TenantId, webhook: WebhookId) -> Result<()>;
    /// Stops deliveries, or lets them go on where they stopped, with all attempts anew. Changes nothing of one that is over.
    async fn enable_webhook(&self, tenant: TenantId, webhook: WebhookId, enabled: bool) -> Result<Webhook>;
    /// From now on deliveries are signed with this secret, and for `keep` also with the one before.
    async fn rotate_webhook(
        &self,
        tenant: TenantId,
        webhook: WebhookId,
        secret: &WebhookSecret,
        keep: Duration,
    ) -> Result<Webhook>;
    /// What deliveries are signed with: the present secret first.
    async fn webhook_secrets(&self, tenant: TenantId, webhook: WebhookId) -> Result<Vec<WebhookSecret>>;
    /// Newest first.
    async fn list_dead_letters(
        &self,
        tenant: TenantId,
        webhook: WebhookId,
        page: &PageRequest,
    ) -> Result<Page<DeadLetter>>;
    /// Has one dead letter delivered again, or all of the webhook's, with all attempts anew. Says how many. Fails with
    /// `dead_letter_not_found` and `webhook_disabled`.
    async fn redeliver(
        &self,
        tenant: TenantId,
        webhook: WebhookId,
        letter: Option<DeliveryId>,
    ) -> Result<u64>;
}

/// Delivering. These calls act for the system, not for a tenant.
#[async_trait]
pub trait Deliveries {
    /// Webhooks that are not over and not disabled, after `after` in id order.
    async fn active_webhooks(&self, after: Option<WebhookId>, limit: u32) -> Result<Vec<ActiveWebhook>>;
    /// Webhooks with dead letters to be tried at this moment.
    async fn wanted_redeliveries(&self, limit: u32) -> Result<Vec<ActiveWebhook>>;
    /// What to do for a webhook next. Nothing, if it does not exist any more or is disabled.
    async fn delivery_work(&self, webhook: WebhookId) -> Result<Option<DeliveryWork>>;
    /// Writes what came of an attempt. False if the webhook was not where the report takes it to be: someone else was quicker, or
    /// it is gone.
    async fn report_delivery(&self, report: &DeliveryReport) -> Result<bool>;
}

#[derive(Clone, Debug)]
pub struct NewWebhook {
    pub id: WebhookId,
    pub tenant: TenantId,
    pub of: WebhookOf,
    pub url: String,
    pub types: EventFilter,
    pub secret: WebhookSecret,
}

/// What a webhook tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebhookOf {
    Session(SessionId),
    Run(RunId),
}

/// As much of a webhook as whoever listens for its events has to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveWebhook {
    pub id: WebhookId,
    pub tenant: TenantId,
    pub session: SessionId,
    pub run: Option<RunId>,
    pub types: EventFilter,
    /// There is something to deliver, and it may be tried now.
    pub due: bool,
}

/// What is to be done for a webhook.
#[derive(Clone, Debug)]
pub struct DeliveryWork {
    pub webhook: Webhook,
    /// The present one first.
    pub secrets: Vec<WebhookSecret>,
    /// How long the event that comes next has to wait. Zero: not at all.
    pub wait: Duration,
    /// The oldest dead letter that is to be tried now.
    pub redelivery: Option<DeadLetter>,
}

/// What came of an attempt.
#[derive(Clone, Debug)]
pub struct DeliveryReport {
    pub webhook: WebhookId,
    pub outcome: DeliveryOutcome,
}

#[derive(Clone, Debug)]
pub enum DeliveryOutcome {
    /// Everything up to a cursor is done with.
    Passed {
        way: Passage,
        /// The last event on the way was delivered, not only passed over.
        delivered: bool,
    },
    /// To be tried again.
    Failed {
        at: Cursor,
        attempts_before: u32,
        failure: DeliveryFailure,
        retry_in: Duration,
    },
    /// The last event on the way is given up.
    Died {
        way: Passage,
        event: Box<Event>,
        attempts: u32,
        failure: DeliveryFailure,
    },
    /// The receiver does not want to hear of us any more.
    Gone {
        at: Cursor,
        failure: DeliveryFailure,
    },
    Redelivered {
        letter: Cursor,
    },
    RedeliveryFailed {
        letter: Cursor,
        attempts: u32,
        failure: DeliveryFailure,
        /// Nothing: it is dead again.
        retry_in: Option<Duration>,
    },
}

/// A step of a webhook through its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passage {
    pub from: Cursor,
    pub to: Cursor,
    /// Nothing comes after it.
    pub ended: bool,
}
