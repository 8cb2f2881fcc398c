use remuda_domain::{WebhookId, error::Result, identity::Principal, page::PageRequest};
use remuda_proto::v1;

use super::Calls;
use crate::app::{TestDelivery, WebhookSpec, WebhookWithSecret};

fn test_response(test: TestDelivery) -> v1::TestWebhookResponse {
    let status = test.status.map(u32::from).unwrap_or_default();
    v1::TestWebhookResponse {
        delivery_id: test.id.to_string(),
        accepted: test.failure.is_none(),
        failure: test.failure.map(|message| v1::DeliveryFailure { status, message }),
        status,
        duration: test.duration.try_into().ok(),
    }
}

impl Calls {
    pub(crate) async fn create_webhook(
        &self,
        caller: Principal,
        body: v1::CreateWebhookRequest,
    ) -> Result<v1::CreateWebhookResponse> {
        let run = if body.run_id.is_empty() { None } else { Some(body.run_id.parse()?) };
        let spec = WebhookSpec { session: body.session, run, url: body.url, types: body.types };
        let WebhookWithSecret { webhook, secret } = self.app.create_webhook(&caller, spec).await?;
        Ok(v1::CreateWebhookResponse { webhook: Some(webhook.into()), secret })
    }

    pub(crate) async fn get_webhook(
        &self,
        caller: Principal,
        body: v1::GetWebhookRequest,
    ) -> Result<v1::GetWebhookResponse> {
        let webhook = self.app.get_webhook(&caller, body.webhook_id.parse()?).await?;
        Ok(v1::GetWebhookResponse { webhook: Some(webhook.into()) })
    }

    pub(crate) async fn list_webhooks(
        &self,
        caller: Principal,
        body: v1::ListWebhooksRequest,
    ) -> Result<v1::ListWebhooksResponse> {
        let page = PageRequest::parse(body.page_size, &body.page_token)?;
        let page = self.app.list_webhooks(&caller, &body.session, &page).await?;
        Ok(v1::ListWebhooksResponse {
            webhooks: page.items.into_iter().map(Into::into).collect(),
            next_page_token: page.next.unwrap_or_default(),
        })
    }

    pub(crate) async fn delete_webhook(
        &self,
        caller: Principal,
        body: v1::DeleteWebhookRequest,
    ) -> Result<v1::DeleteWebhookResponse> {
        self.app.delete_webhook(&caller, body.webhook_id.parse()?).await?;
        Ok(v1::DeleteWebhookResponse {})
    }

    pub(crate) async fn enable_webhook(
        &self,
        caller: Principal,
        body: v1::EnableWebhookRequest,
    ) -> Result<v1::EnableWebhookResponse> {
        let id: WebhookId = body.webhook_id.parse()?;
        let webhook = self.app.enable_webhook(&caller, id, body.enabled).await?;
        Ok(v1::EnableWebhookResponse { webhook: Some(webhook.into()) })
    }

    pub(crate) async fn rotate_webhook_secret(
        &self,
        caller: Principal,
        body: v1::RotateWebhookSecretRequest,
    ) -> Result<v1::RotateWebhookSecretResponse> {
        let id: WebhookId = body.webhook_id.parse()?;
        let WebhookWithSecret { webhook, secret } = self.app.rotate_webhook(&caller, id).await?;
        Ok(v1::RotateWebhookSecretResponse { webhook: Some(webhook.into()), secret })
    }

    pub(crate) async fn test_webhook(
        &self,
        caller: Principal,
        body: v1::TestWebhookRequest,
    ) -> Result<v1::TestWebhookResponse> {
        Ok(test_response(self.app.test_webhook(&caller, body.webhook_id.parse()?).await?))
    }

    pub(crate) async fn list_dead_letters(
        &self,
        caller: Principal,
        body: v1::ListDeadLettersRequest,
    ) -> Result<v1::ListDeadLettersResponse> {
        let page = PageRequest::parse(body.page_size, &body.page_token)?;
        let page = self.app.list_dead_letters(&caller, body.webhook_id.parse()?, &page).await?;
        Ok(v1::ListDeadLettersResponse {
            dead_letters: page.items.into_iter().map(Into::into).collect(),
            next_page_token: page.next.unwrap_or_default(),
        })
    }

    pub(crate) async fn redeliver(
        &self,
        caller: Principal,
        body: v1::RedeliverRequest,
    ) -> Result<v1::RedeliverResponse> {
        let letter = if body.delivery_id.is_empty() { None } else { Some(body.delivery_id.parse()?) };
        let count = self.app.redeliver(&caller, body.webhook_id.parse()?, letter).await?;
        Ok(v1::RedeliverResponse { count })
    }
}
