//! Webhooks, deliveries and dead letters.

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
    /// Creates a webhook. A session's webhook receives events from now on; a run's webhook receives all events of that
    /// run, including earlier ones. Of a session's ended webhooks only the newest are kept. Fails with
    /// `session_not_found`, `run_not_found` and `webhook_limit`.
    async fn create_webhook(&self, webhook: &NewWebhook) -> Result<Webhook>;
    /// Reads a webhook. Fails with `webhook_not_found`.
    async fn get_webhook(&self, tenant: TenantId, webhook: WebhookId) -> Result<Webhook>;
    /// Lists webhooks, newest first.
    async fn list_webhooks(
        &self,
        tenant: TenantId,
        session: Option<SessionId>,
        page: &PageRequest,
    ) -> Result<Page<Webhook>>;
    /// Deletes a webhook with its dead letters.
    async fn delete_webhook(&self, tenant: TenantId, webhook: WebhookId) -> Result<()>;
    /// Disables deliveries, or enables them again from where they stopped, with a fresh number of attempts. Does
    /// nothing to an ended webhook.
    async fn enable_webhook(&self, tenant: TenantId, webhook: WebhookId, enabled: bool) -> Result<Webhook>;
    /// Replaces the signing secret. For `keep`, deliveries are also signed with the previous secret.
    async fn rotate_webhook(
        &self,
        tenant: TenantId,
        webhook: WebhookId,
        secret: &WebhookSecret,
        keep: Duration,
    ) -> Result<Webhook>;
    /// The secrets that deliveries are signed with, the current one first.
    async fn webhook_secrets(&self, tenant: TenantId, webhook: WebhookId) -> Result<Vec<WebhookSecret>>;
    /// Lists dead letters, newest first.
    async fn list_dead_letters(
        &self,
        tenant: TenantId,
        webhook: WebhookId,
        page: &PageRequest,
    ) -> Result<Page<DeadLetter>>;
    /// Schedules one dead letter, or all of the webhook's, for redelivery with a fresh number of attempts, and returns
    /// their number. Fails with `dead_letter_not_found` and `webhook_disabled`.
    async fn redeliver(
        &self,
        tenant: TenantId,
        webhook: WebhookId,
        letter: Option<DeliveryId>,
    ) -> Result<u64>;
}

/// The deliverer's side of webhooks. These calls act for the system, not for a tenant.
#[async_trait]
pub trait Deliveries {
    /// Lists active webhooks with ids greater than `after`, in id order.
    async fn active_webhooks(&self, after: Option<WebhookId>, limit: u32) -> Result<Vec<ActiveWebhook>>;
    /// Lists webhooks with dead letters that are due for redelivery.
    async fn due_redeliveries(&self, limit: u32) -> Result<Vec<ActiveWebhook>>;
    /// Reads what to deliver next. `None` if the webhook no longer exists or is disabled.
    async fn pending_delivery(&self, webhook: WebhookId) -> Result<Option<PendingDelivery>>;
    /// Records the outcome of a delivery attempt. Returns false, and writes nothing, if the webhook is not in the state
    /// that the report assumes: another deliverer was faster, or the webhook was deleted.
    async fn report_delivery(&self, report: &DeliveryReport) -> Result<bool>;
}

/// A webhook to create.
#[derive(Clone, Debug)]
pub struct NewWebhook {
    pub id: WebhookId,
    pub tenant: TenantId,
    pub target: WebhookTarget,
    pub url: String,
    pub types: EventFilter,
    pub secret: WebhookSecret,
}

/// The session or run whose events a webhook receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebhookTarget {
    Session(SessionId),
    Run(RunId),
}

/// The part of a webhook that the deliverer needs to listen for its events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveWebhook {
    pub id: WebhookId,
    pub tenant: TenantId,
    pub session: SessionId,
    pub run: Option<RunId>,
    pub types: EventFilter,
    /// There are undelivered events, and the next attempt is due.
    pub due: bool,
}

/// What to deliver to a webhook next.
#[derive(Clone, Debug)]
pub struct PendingDelivery {
    pub webhook: Webhook,
    /// The current secret first.
    pub secrets: Vec<WebhookSecret>,
    /// Time until the next attempt. Zero: it is due.
    pub wait: Duration,
    /// The oldest dead letter that is due for redelivery.
    pub redelivery: Option<DeadLetter>,
}

/// The outcome of a delivery attempt.
#[derive(Clone, Debug)]
pub struct DeliveryReport {
    pub webhook: WebhookId,
    pub outcome: DeliveryOutcome,
}

/// What happened to one event of a webhook's stream, or to a dead letter.
#[derive(Clone, Debug)]
pub enum DeliveryOutcome {
    /// The webhook is done with every event up to a cursor.
    Advanced {
        advance: CursorAdvance,
        /// The last of these events was delivered; false if the filter skipped it.
        delivered: bool,
    },
    /// The delivery failed and will be retried.
    Failed { at: Cursor, attempts_before: u32, failure: DeliveryFailure, retry_in: Duration },
    /// The last of these events has no attempts left and becomes a dead letter.
    DeadLettered { advance: CursorAdvance, event: Box<Event>, attempts: u32, failure: DeliveryFailure },
    /// The receiver answered that it is gone: the webhook is disabled.
    ReceiverGone { at: Cursor, failure: DeliveryFailure },
    /// The dead letter of the event with this cursor was delivered.
    Redelivered { letter: Cursor },
    /// The redelivery of a dead letter failed.
    RedeliveryFailed {
        letter: Cursor,
        attempts: u32,
        failure: DeliveryFailure,
        /// `None`: no attempts are left, it stays a dead letter.
        retry_in: Option<Duration>,
    },
}

/// A move of a webhook's cursor along its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CursorAdvance {
    pub from: Cursor,
    pub to: Cursor,
    /// No events follow: the webhook has ended.
    pub ended: bool,
}
