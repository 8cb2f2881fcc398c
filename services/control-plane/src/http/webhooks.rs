use axum::{Json, extract::State};
use hyper::StatusCode;
use remuda_api::{
    DeadLetterPage, NewWebhook, Redelivery, RedeliveryRequest, Webhook, WebhookChange, WebhookPage,
    WebhookTest,
};
use remuda_http::{
    Caller, ErrorBody, Input, MayRead, MayWrite, MaybeInput, Outcome, Params, Refusals, Segment, Unreadable,
};
use remuda_proto::v1;
use serde::Deserialize;
use utoipa::IntoParams;

use super::{Http, paging::Paging};

#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Listing {
    /// Only webhooks of this session: id or name.
    session: String,
    /// At most 500; 50 when left out.
    #[param(minimum = 0, maximum = 500)]
    page_size: i32,
    /// `next_page_token` of the page before.
    page_token: String,
}

/// Webhooks, newest first.
#[utoipa::path(get, path = "/webhooks", tag = "webhooks", operation_id = "list_webhooks", params(Listing),
    responses((status = 200, body = WebhookPage), Refusals))]
pub(super) async fn list(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayRead>,
    Params(Listing { session, page_size, page_token }): Params<Listing>,
) -> Outcome<Json<WebhookPage>> {
    let request = v1::ListWebhooksRequest { session, page_size, page_token };
    Ok(Json(http.calls.list_webhooks(caller, request).await?.into()))
}

/// Makes a webhook. The answer is the only one that holds its secret.
#[utoipa::path(post, path = "/webhooks", tag = "webhooks", operation_id = "create_webhook", request_body = NewWebhook,
    responses((status = 201, body = Webhook), (status = 409, body = ErrorBody, description = "The session has as many as it may have."), Refusals, Unreadable))]
pub(super) async fn create(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayWrite>,
    Input(new): Input<NewWebhook>,
) -> Outcome<(StatusCode, Json<Webhook>)> {
    let answer = http.calls.create_webhook(caller, new.into()).await?;
    let webhook = Webhook::with_secret(answer.webhook.unwrap_or_default(), answer.secret);
    Ok((StatusCode::CREATED, Json(webhook)))
}

/// One webhook, and how its deliveries go.
#[utoipa::path(get, path = "/webhooks/{webhook_id}", tag = "webhooks", operation_id = "get_webhook",
    params(("webhook_id" = String, Path, pattern = "^whk_[0-9a-z]{26}$", description = "whk_…")),
    responses((status = 200, body = Webhook), Refusals))]
pub(super) async fn get(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayRead>,
    Segment(webhook_id): Segment,
) -> Outcome<Json<Webhook>> {
    let answer = http.calls.get_webhook(caller, v1::GetWebhookRequest { webhook_id }).await?;
    Ok(Json(answer.webhook.unwrap_or_default().into()))
}

/// Stops deliveries, or lets them go on where they stopped.
#[utoipa::path(patch, path = "/webhooks/{webhook_id}", tag = "webhooks", operation_id = "update_webhook",
    params(("webhook_id" = String, Path, pattern = "^whk_[0-9a-z]{26}$", description = "whk_…")), request_body = WebhookChange,
    responses((status = 200, body = Webhook), Refusals, Unreadable))]
pub(super) async fn update(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayWrite>,
    Segment(webhook_id): Segment,
    Input(WebhookChange { enabled }): Input<WebhookChange>,
) -> Outcome<Json<Webhook>> {
    let answer = http.calls.enable_webhook(caller, v1::EnableWebhookRequest { webhook_id, enabled }).await?;
    Ok(Json(answer.webhook.unwrap_or_default().into()))
}

/// Deletes a webhook with its dead letters.
#[utoipa::path(delete, path = "/webhooks/{webhook_id}", tag = "webhooks", operation_id = "delete_webhook",
    params(("webhook_id" = String, Path, pattern = "^whk_[0-9a-z]{26}$", description = "whk_…")),
    responses((status = 204, description = "It is gone."), Refusals))]
pub(super) async fn delete(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayWrite>,
    Segment(webhook_id): Segment,
) -> Outcome<StatusCode> {
    http.calls.delete_webhook(caller, v1::DeleteWebhookRequest { webhook_id }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Makes another secret. Deliveries are signed with both for a day.
#[utoipa::path(post, path = "/webhooks/{webhook_id}/secret", tag = "webhooks", operation_id = "rotate_webhook_secret",
    params(("webhook_id" = String, Path, pattern = "^whk_[0-9a-z]{26}$", description = "whk_…")),
    responses((status = 200, body = Webhook), Refusals))]
pub(super) async fn rotate(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayWrite>,
    Segment(webhook_id): Segment,
) -> Outcome<Json<Webhook>> {
    let request = v1::RotateWebhookSecretRequest { webhook_id };
    let answer = http.calls.rotate_webhook_secret(caller, request).await?;
    Ok(Json(Webhook::with_secret(answer.webhook.unwrap_or_default(), answer.secret)))
}

/// Sends an event of the type webhook.test, at once and once, and says what the receiver answered.
#[utoipa::path(post, path = "/webhooks/{webhook_id}/test", tag = "webhooks", operation_id = "test_webhook",
    params(("webhook_id" = String, Path, pattern = "^whk_[0-9a-z]{26}$", description = "whk_…")),
    responses((status = 200, body = WebhookTest), Refusals))]
pub(super) async fn test(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayWrite>,
    Segment(webhook_id): Segment,
) -> Outcome<Json<WebhookTest>> {
    Ok(Json(http.calls.test_webhook(caller, v1::TestWebhookRequest { webhook_id }).await?.into()))
}

/// Events that were given up, newest first.
#[utoipa::path(get, path = "/webhooks/{webhook_id}/dead-letters", tag = "webhooks", operation_id = "list_dead_letters",
    params(("webhook_id" = String, Path, pattern = "^whk_[0-9a-z]{26}$", description = "whk_…"), Paging),
    responses((status = 200, body = DeadLetterPage), Refusals))]
pub(super) async fn dead_letters(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayRead>,
    Segment(webhook_id): Segment,
    Params(Paging { page_size, page_token }): Params<Paging>,
) -> Outcome<Json<DeadLetterPage>> {
    let request = v1::ListDeadLettersRequest { webhook_id, page_size, page_token };
    Ok(Json(http.calls.list_dead_letters(caller, request).await?.into()))
}

/// Has dead letters delivered again, with all attempts anew.
#[utoipa::path(post, path = "/webhooks/{webhook_id}/redeliver", tag = "webhooks", operation_id = "redeliver",
    params(("webhook_id" = String, Path, pattern = "^whk_[0-9a-z]{26}$", description = "whk_…")),
    request_body(content = Option<RedeliveryRequest>),
    responses((status = 202, body = Redelivery), (status = 409, body = ErrorBody, description = "The webhook is disabled: enable it first."), Refusals, Unreadable))]
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
