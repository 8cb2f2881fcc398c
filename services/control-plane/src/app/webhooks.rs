//! Webhooks.

use std::time::Duration;

use chrono::Utc;
use remuda_domain::{
    Code, DeliveryId, Error, EventId, RunId, WebhookId,
    error::Result,
    identity::Principal,
    page::{Page, PageRequest},
    webhook::{DeadLetter, DeliveryFailure, EventFilter, Webhook, WebhookState, delivery_id},
};
use remuda_store::{ActiveWebhook, NewWebhook, WebhookOf};
use tokio::time::Instant;

use super::App;
use crate::webhooks::{Answer, Parcel, new_secret, secret_text, test_body};

/// Tests under way at once: each may take as long as a delivery.
pub(super) const MAX_TESTS: usize = 16;
/// How long deliveries are signed with the old secret too, after a change.
const BOTH_SECRETS: Duration = Duration::from_secs(24 * 60 * 60);

/// What a caller says of a new webhook.
#[derive(Clone, Debug)]
pub struct WebhookSpec {
    /// Id or name. Empty for a webhook of a run.
    pub session: String,
    pub run: Option<RunId>,
    pub url: String,
    pub types: Vec<String>,
}

/// A webhook with its secret, which is shown only here.
#[derive(Clone)]
pub struct WithSecret {
    pub webhook: Webhook,
    /// `whsec_…`
    pub secret: String,
}

impl std::fmt::Debug for WithSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WithSecret").field("webhook", &self.webhook).finish_non_exhaustive()
    }
}

/// What a receiver said to a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestDelivery {
    pub id: DeliveryId,
    pub status: Option<u16>,
    /// Nothing: it was accepted.
    pub failure: Option<String>,
    pub duration: Duration,
}

impl App {
    pub async fn create_webhook(&self, caller: &Principal, spec: WebhookSpec) -> Result<WithSecret> {
        let types = EventFilter::new(spec.types)?;
        let of = match (spec.session.as_str(), spec.run) {
            ("", Some(run)) => WebhookOf::Run(run),
            ("", None) => return Err(Error::invalid("session", "expected a session or a run")),
            (_, Some(_)) => {
                return Err(Error::invalid("run_id", "expected a session or a run, not both"));
            }
            (session, None) => WebhookOf::Session(self.session_id(caller, session).await?),
        };
        self.courier.check(&spec.url).await?;
        let secret = new_secret();
        let text = secret_text(&secret);
        let new =
            NewWebhook { id: WebhookId::new(), tenant: caller.tenant, of, url: spec.url, types, secret };
        let webhook = self.store.create_webhook(&new).await?;
        self.call_deliverer(&webhook);
        Ok(WithSecret { webhook, secret: text })
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

    /// Stops deliveries, or lets them go on where they stopped.
    pub async fn enable_webhook(
        &self,
        caller: &Principal,
        webhook: WebhookId,
        enabled: bool,
    ) -> Result<Webhook> {
        let webhook = self.store.enable_webhook(caller.tenant, webhook, enabled).await?;
        if webhook.state == WebhookState::Active {
            self.call_deliverer(&webhook);
        }
        Ok(webhook)
    }

    /// Gives the webhook another secret. For a day deliveries are signed with both.
    pub async fn rotate_webhook(&self, caller: &Principal, webhook: WebhookId) -> Result<WithSecret> {
        let secret = new_secret();
        let webhook = self.store.rotate_webhook(caller.tenant, webhook, &secret, BOTH_SECRETS).await?;
        Ok(WithSecret { webhook, secret: secret_text(&secret) })
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

    /// Has one dead letter delivered again, or all of the webhook's. Says how many.
    pub async fn redeliver(
        &self,
        caller: &Principal,
        webhook: WebhookId,
        letter: Option<DeliveryId>,
    ) -> Result<u64> {
        let wanted = self.store.redeliver(caller.tenant, webhook, letter).await?;
        if wanted > 0 {
            self.call_deliverer(&self.store.get_webhook(caller.tenant, webhook).await?);
        }
        Ok(wanted)
    }

    /// Sends an event of the type `webhook.test`, at once and once, whatever the webhook's state.
    pub async fn test_webhook(&self, caller: &Principal, webhook: WebhookId) -> Result<TestDelivery> {
        let full = || {
            Error::new(Code::Overloaded, "too many webhooks are being tested")
                .retry_after(Duration::from_secs(1))
        };
        let _room = self.test_room.try_acquire().map_err(|_| full())?;
        let webhook = self.store.get_webhook(caller.tenant, webhook).await?;
        let secrets = self.store.webhook_secrets(caller.tenant, webhook.id).await?;
        let event = EventId::new();
        let id = delivery_id(webhook.id, event);
        let body = test_body(webhook.session, webhook.run, event, Utc::now())?;
        let parcel = Parcel { id, body, secrets: &secrets };
        let begun = Instant::now();
        let answer = self.courier.deliver(&webhook.url, &mut None, &parcel).await;
        let (status, failure) = match answer {
            Answer::Accepted { status } => (Some(status), None),
            Answer::Gone(DeliveryFailure { status, message })
            | Answer::Failed { failure: DeliveryFailure { status, message }, .. } => (status, Some(message)),
        };
        Ok(TestDelivery { id, status, failure, duration: begun.elapsed() })
    }

    /// Tells the deliverer of this process, which may be the one that delivers.
    fn call_deliverer(&self, webhook: &Webhook) {
        self.bell.add(ActiveWebhook {
            id: webhook.id,
            tenant: webhook.tenant,
            session: webhook.session,
            run: webhook.run,
            types: webhook.types.clone(),
            due: true,
        });
    }
}
