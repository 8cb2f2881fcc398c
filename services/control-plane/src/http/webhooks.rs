use axum::{Json, extract::State};
use hyper::StatusCode;
use remuda_api::{
    DeadLetterPage, NewWebhook, Redelivery, RedeliveryRequest, Webhook, WebhookChange, WebhookPage,
    WebhookTest,
};
use remuda_http::{
    BodyErrors, Caller, CommonErrors, ErrorBody, Input, MayRead, MayWrite, MaybeInput, Outcome, Params,
    Segment,
};
use remuda_proto::v1;
use serde::Deserialize;
use utoipa::IntoParams;

use super::{Http, paging::PageQuery};

#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ListQuery {
    /// Only webhooks of this session: id or name.
    session: String,
    /// Page size: at most 500; 50 if omitted.
    #[param(minimum = 0, maximum = 500)]
    page_size: i32,
    /// `next_page_token` of the previous page.
    page_token: String,
}

/// Lists webhooks, newest first.
#[utoipa::path(get, path = "/webhooks", tag = "webhooks", operation_id = "list_webhooks", params(ListQuery),
    responses((status = 200, body = WebhookPage), CommonErrors))]
pub(super) async fn list(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayRead>,
    Params(ListQuery { session, page_size, page_token }): Params<ListQuery>,
) -> Outcome<Json<WebhookPage>> {
    let request = v1::ListWebhooksRequest { session, page_size, page_token };
    Ok(Json(http.calls.list_webhooks(caller, request).await?.into()))
}

/// Creates a webhook. Only this response contains its secret.
#[utoipa::path(post, path = "/webhooks", tag = "webhooks", operation_id = "create_webhook", request_body = NewWebhook,
    responses((status = 201, body = Webhook), (status = 409, body = ErrorBody, description = "The session has the maximum number of webhooks."), CommonErrors, BodyErrors))]
pub(super) async fn create(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayWrite>,
    Input(new): Input<NewWebhook>,
) -> Outcome<(StatusCode, Json<Webhook>)> {
    let answer = http.calls.create_webhook(caller, new.into()).await?;
    let webhook = Webhook::with_secret(answer.webhook.unwrap_or_default(), answer.secret);
    Ok((StatusCode::CREATED, Json(webhook)))
}

/// Returns a webhook and the state of its deliveries.
#[utoipa::path(get, path = "/webhooks/{webhook_id}", tag = "webhooks", operation_id = "get_webhook",
    params(("webhook_id" = String, Path, pattern = "^whk_[0-9a-z]{26}$", description = "whk_…")),
    responses((status = 200, body = Webhook), CommonErrors))]
pub(super) async fn get(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayRead>,
    Segment(webhook_id): Segment,
) -> Outcome<Json<Webhook>> {
    let answer = http.calls.get_webhook(caller, v1::GetWebhookRequest { webhook_id }).await?;
    Ok(Json(answer.webhook.unwrap_or_default().into()))
}

/// Disables a webhook, or enables it again: deliveries resume where they stopped.
#[utoipa::path(patch, path = "/webhooks/{webhook_id}", tag = "webhooks", operation_id = "update_webhook",
    params(("webhook_id" = String, Path, pattern = "^whk_[0-9a-z]{26}$", description = "whk_…")), request_body = WebhookChange,
    responses((status = 200, body = Webhook), CommonErrors, BodyErrors))]
pub(super) async fn update(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayWrite>,
    Segment(webhook_id): Segment,
    Input(WebhookChange { enabled }): Input<WebhookChange>,
) -> Outcome<Json<Webhook>> {
    let answer = http.calls.enable_webhook(caller, v1::EnableWebhookRequest { webhook_id, enabled }).await?;
    Ok(Json(answer.webhook.unwrap_or_default().into()))
}

/// Deletes a webhook and its dead letters.
#[utoipa::path(delete, path = "/webhooks/{webhook_id}", tag = "webhooks", operation_id = "delete_webhook",
    params(("webhook_id" = String, Path, pattern = "^whk_[0-9a-z]{26}$", description = "whk_…")),
    responses((status = 204, description = "Deleted."), CommonErrors))]
pub(super) async fn delete(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayWrite>,
    Segment(webhook_id): Segment,
) -> Outcome<StatusCode> {
    http.calls.delete_webhook(caller, v1::DeleteWebhookRequest { webhook_id }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Replaces the secret. Deliveries are signed with both secrets for a day.
#[utoipa::path(post, path = "/webhooks/{webhook_id}/secret", tag = "webhooks", operation_id = "rotate_webhook_secret",
    params(("webhook_id" = String, Path, pattern = "^whk_[0-9a-z]{26}$", description = "whk_…")),
    responses((status = 200, body = Webhook), CommonErrors))]
pub(super) async fn rotate(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayWrite>,
    Segment(webhook_id): Segment,
) -> Outcome<Json<Webhook>> {
    let request = v1::RotateWebhookSecretRequest { webhook_id };
    let answer = http.calls.rotate_webhook_secret(caller, request).await?;
    Ok(Json(Webhook::with_secret(answer.webhook.unwrap_or_default(), answer.secret)))
}

/// Sends one event of the type `webhook.test` now, and returns the receiver's response.
#[utoipa::path(post, path = "/webhooks/{webhook_id}/test", tag = "webhooks", operation_id = "test_webhook",
    params(("webhook_id" = String, Path, pattern = "^whk_[0-9a-z]{26}$", description = "whk_…")),
    responses((status = 200, body = WebhookTest), CommonErrors))]
pub(super) async fn test(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayWrite>,
    Segment(webhook_id): Segment,
) -> Outcome<Json<WebhookTest>> {
    Ok(Json(http.calls.test_webhook(caller, v1::TestWebhookRequest { webhook_id }).await?.into()))
}

/// Lists the dead letters of a webhook: events that could not be delivered, newest first.
#[utoipa::path(get, path = "/webhooks/{webhook_id}/dead-letters", tag = "webhooks", operation_id = "list_dead_letters",
    params(("webhook_id" = String, Path, pattern = "^whk_[0-9a-z]{26}$", description = "whk_…"), PageQuery),
    responses((status = 200, body = DeadLetterPage), CommonErrors))]
pub(super) async fn dead_letters(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayRead>,
    Segment(webhook_id): Segment,
    Params(PageQuery { page_size, page_token }): Params<PageQuery>,
) -> Outcome<Json<DeadLetterPage>> {
    let request = v1::ListDeadLettersRequest { webhook_id, page_size, page_token };
    Ok(Json(http.calls.list_dead_letters(caller, request).await?.into()))
}

/// Schedules dead letters for redelivery, with a full set of attempts.
#[utoipa::path(post, path = "/webhooks/{webhook_id}/redeliver", tag = "webhooks", operation_id = "redeliver",
    params(("webhook_id" = String, Path, pattern = "^whk_[0-9a-z]{26}$", description = "whk_…")),
    request_body(content = Option<RedeliveryRequest>),
    responses((status = 202, body = Redelivery), (status = 409, body = ErrorBody, description = "The webhook is disabled: enable it first."), CommonErrors, BodyErrors))]
pub(super) async fn redeliver(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayWrite>,
    Segment(webhook_id): Segment,
    MaybeInput(RedeliveryRequest { delivery_id }): MaybeInput<RedeliveryRequest>,
) -> Outcome<(StatusCode, Json<Redelivery>)> {
    let request = v1::RedeliverRequest { webhook_id, delivery_id: delivery_id.unwrap_or_default() };
    let count = http.calls.redeliver(caller, request).await?.count;
    Ok((StatusCode::ACCEPTED, Json(Redelivery { count })))
}
