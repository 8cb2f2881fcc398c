//! Creating, changing and testing webhooks.

use std::time::Duration;

use chrono::Utc;
use remuda_domain::{
    Code, DeliveryId, Error, EventId, RunId, WebhookId,
    error::Result,
    identity::Principal,
    page::{Page, PageRequest},
    webhook::{DeadLetter, DeliveryFailure, EventFilter, Webhook, WebhookState, delivery_id},
};
use remuda_store::{ActiveWebhook, NewWebhook, WebhookTarget};
use tokio::time::Instant;

use super::App;
use crate::webhooks::{Delivery, SendOutcome, new_secret, secret_text, test_body};

/// Concurrent tests: each may take as long as a delivery.
pub(super) const MAX_TESTS: usize = 16;
/// How long deliveries are also signed with the old secret after a rotation.
const OLD_SECRET_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// The settings of a new webhook.
#[derive(Clone, Debug)]
pub struct WebhookSpec {
    /// Id or name. Empty for a webhook of a run.
    pub session: String,
    pub run: Option<RunId>,
    pub url: String,
    pub types: Vec<String>,
}

/// A webhook with its secret, which is shown only once.
#[derive(Clone)]
pub struct WebhookWithSecret {
    pub webhook: Webhook,
    /// `whsec_…`
    pub secret: String,
}

impl std::fmt::Debug for WebhookWithSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WebhookWithSecret").field("webhook", &self.webhook).finish_non_exhaustive()
    }
}

/// The result of a test delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestDelivery {
    pub id: DeliveryId,
    pub status: Option<u16>,
    /// `None` if it was accepted.
    pub failure: Option<String>,
    pub duration: Duration,
}

impl App {
    pub async fn create_webhook(&self, caller: &Principal, spec: WebhookSpec) -> Result<WebhookWithSecret> {
        let types = EventFilter::new(spec.types)?;
        let of = match (spec.session.as_str(), spec.run) {
            ("", Some(run)) => WebhookTarget::Run(run),
            ("", None) => return Err(Error::invalid("session", "expected a session or a run")),
            (_, Some(_)) => {
                return Err(Error::invalid("run_id", "expected a session or a run, not both"));
            }
            (session, None) => WebhookTarget::Session(self.session_id(caller, session).await?),
        };
        self.webhook_sender.check(&spec.url).await?;
        let secret = new_secret();
        let text = secret_text(&secret);
        let new = NewWebhook {
            id: WebhookId::new(),
            tenant: caller.tenant,
            target: of,
            url: spec.url,
            types,
            secret,
        };
        let webhook = self.store.create_webhook(&new).await?;
        self.notify_deliverer(&webhook);
        Ok(WebhookWithSecret { webhook, secret: text })
    }

    pub async fn get_webhook(&self, caller: &Principal, webhook: WebhookId) -> Result<Webhook> {
        self.store.get_webhook(caller.tenant, webhook).await
    }

    /// Newest first. `session` is an id, a name, or empty for all.
    pub async fn list_webhooks(
        &self,
        caller: &Principal,
        session: &str,
        page: &PageRequest,
    ) -> Result<Page<Webhook>> {
        let session = match session {
            "" => None,
            session => Some(self.get_session(caller, session).await?.id),
        };
        self.store.list_webhooks(caller.tenant, session, page).await
    }

    pub async fn delete_webhook(&self, caller: &Principal, webhook: WebhookId) -> Result<()> {
        self.store.delete_webhook(caller.tenant, webhook).await
    }

    /// Disables deliveries, or resumes them where they stopped.
    pub async fn enable_webhook(
        &self,
        caller: &Principal,
        webhook: WebhookId,
        enabled: bool,
    ) -> Result<Webhook> {
        let webhook = self.store.enable_webhook(caller.tenant, webhook, enabled).await?;
        if webhook.state == WebhookState::Active {
            self.notify_deliverer(&webhook);
        }
        Ok(webhook)
    }

    /// Replaces the secret. Deliveries are signed with both secrets for a day.
    pub async fn rotate_webhook(&self, caller: &Principal, webhook: WebhookId) -> Result<WebhookWithSecret> {
        let secret = new_secret();
        let webhook = self.store.rotate_webhook(caller.tenant, webhook, &secret, OLD_SECRET_TTL).await?;
        Ok(WebhookWithSecret { webhook, secret: secret_text(&secret) })
    }

    /// Newest first.
    pub async fn list_dead_letters(
        &self,
        caller: &Principal,
        webhook: WebhookId,
        page: &PageRequest,
    ) -> Result<Page<DeadLetter>> {
        self.store.list_dead_letters(caller.tenant, webhook, page).await
    }

    /// Schedules one dead letter, or all of the webhook's, for redelivery. Returns how many.
    pub async fn redeliver(
        &self,
        caller: &Principal,
        webhook: WebhookId,
        letter: Option<DeliveryId>,
    ) -> Result<u64> {
        let scheduled = self.store.redeliver(caller.tenant, webhook, letter).await?;
        if scheduled > 0 {
            self.notify_deliverer(&self.store.get_webhook(caller.tenant, webhook).await?);
        }
        Ok(scheduled)
    }

    /// Sends one event of the type `webhook.test` now, whatever the webhook's state.
    pub async fn test_webhook(&self, caller: &Principal, webhook: WebhookId) -> Result<TestDelivery> {
        let full = || {
            Error::new(Code::Overloaded, "too many webhooks are being tested")
                .retry_after(Duration::from_secs(1))
        };
        let _permit = self.test_permits.try_acquire().map_err(|_| full())?;
        let webhook = self.store.get_webhook(caller.tenant, webhook).await?;
        let secrets = self.store.webhook_secrets(caller.tenant, webhook.id).await?;
        let event = EventId::new();
        let id = delivery_id(webhook.id, event);
        let body = test_body(webhook.session, webhook.run, event, Utc::now())?;
        let delivery = Delivery { id, body, secrets: &secrets };
        let begun = Instant::now();
        let outcome = self.webhook_sender.send(&webhook.url, &mut None, &delivery).await;
        let (status, failure) = match outcome {
            SendOutcome::Accepted { status } => (Some(status), None),
            SendOutcome::Gone(DeliveryFailure { status, message })
            | SendOutcome::Failed { failure: DeliveryFailure { status, message }, .. } => {
                (status, Some(message))
            }
        };
        Ok(TestDelivery { id, status, failure, duration: begun.elapsed() })
    }

    /// Notifies the deliverer of this process, in case this process leads.
    fn notify_deliverer(&self, webhook: &Webhook) {
        self.delivery_notifier.notify_added(ActiveWebhook {
            id: webhook.id,
            tenant: webhook.tenant,
            session: webhook.session,
            run: webhook.run,
            types: webhook.types.clone(),
            due: true,
        });
    }
}
