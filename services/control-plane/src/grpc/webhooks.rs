use remuda_domain::identity::Scope;
use remuda_proto::v1::{self, webhook_service_server::WebhookService};
use tonic::{Request, Response, Status, async_trait};

use super::Api;

#[async_trait]
impl WebhookService for Api {
    async fn create_webhook(
        &self,
        request: Request<v1::CreateWebhookRequest>,
    ) -> Result<Response<v1::CreateWebhookResponse>, Status> {
        self.gate.answer(request, Scope::Write, |caller, body| self.calls.create_webhook(caller, body)).await
    }

    async fn get_webhook(
        &self,
        request: Request<v1::GetWebhookRequest>,
    ) -> Result<Response<v1::GetWebhookResponse>, Status> {
        self.gate.answer(request, Scope::Read, |caller, body| self.calls.get_webhook(caller, body)).await
    }

    async fn list_webhooks(
        &self,
        request: Request<v1::ListWebhooksRequest>,
    ) -> Result<Response<v1::ListWebhooksResponse>, Status> {
        self.gate.answer(request, Scope::Read, |caller, body| self.calls.list_webhooks(caller, body)).await
    }

    async fn delete_webhook(
        &self,
        request: Request<v1::DeleteWebhookRequest>,
    ) -> Result<Response<v1::DeleteWebhookResponse>, Status> {
        self.gate.answer(request, Scope::Write, |caller, body| self.calls.delete_webhook(caller, body)).await
    }

    async fn enable_webhook(
        &self,
        request: Request<v1::EnableWebhookRequest>,
    ) -> Result<Response<v1::EnableWebhookResponse>, Status> {
        self.gate.answer(request, Scope::Write, |caller, body| self.calls.enable_webhook(caller, body)).await
    }

    async fn rotate_webhook_secret(
        &self,
        request: Request<v1::RotateWebhookSecretRequest>,
    ) -> Result<Response<v1::RotateWebhookSecretResponse>, Status> {
        self.gate
            .answer(request, Scope::Write, |caller, body| self.calls.rotate_webhook_secret(caller, body))
            .await
    }

    async fn test_webhook(
        &self,
        request: Request<v1::TestWebhookRequest>,
    ) -> Result<Response<v1::TestWebhookResponse>, Status> {
        self.gate.answer(request, Scope::Write, |caller, body| self.calls.test_webhook(caller, body)).await
    }

    async fn list_dead_letters(
        &self,
        request: Request<v1::ListDeadLettersRequest>,
    ) -> Result<Response<v1::ListDeadLettersResponse>, Status> {
        self.gate
            .answer(request, Scope::Read, |caller, body| self.calls.list_dead_letters(caller, body))
            .await
    }

    async fn redeliver(
        &self,
        request: Request<v1::RedeliverRequest>,
    ) -> Result<Response<v1::RedeliverResponse>, Status> {
        self.gate.answer(request, Scope::Write, |caller, body| self.calls.redeliver(caller, body)).await
    }
}
