//! Webhooks and dead letters.

use remuda_proto::v1;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::json_value::{list, millis, text, time};

/// Events of a session, or of one run, sent to a URL as they happen.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Webhook {
    /// `whk_…`
    pub id: String,
    pub session_id: String,
    /// Only events of this run, up to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    pub url: String,
    /// Names of event types, or families such as `run.*`. Empty means all.
    pub types: Vec<String>,
    /// `active`, `disabled` (by a caller, or because the receiver answered 410) or `ended` (the end of its run is
    /// delivered).
    pub state: String,
    /// Events of the session up to this cursor are delivered, dead letters, or do not match.
    pub cursor: i64,
    /// Failed attempts to deliver the next event.
    pub attempts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub next_attempt_at: Option<String>,
    /// The failure of the last attempt, until one succeeds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<DeliveryFailure>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub delivered_at: Option<String>,
    pub dead_letters: u64,
    /// Dead letters that were dropped for newer ones.
    pub dropped_dead_letters: u64,
    /// Until when deliveries are also signed with the previous secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub previous_secret_until: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub created_at: Option<String>,
    /// The secret that signs deliveries (`whsec_…`). Only in the response to its creation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct DeliveryFailure {
    /// The HTTP status. Omitted if the receiver did not respond.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u32>,
    pub message: String,
}

/// An event that could not be delivered.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct DeadLetter {
    /// The header `webhook-id` of every attempt.
    pub id: String,
    pub webhook_id: String,
    pub event_id: String,
    pub event_type: String,
    pub cursor: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub event_at: Option<String>,
    pub attempts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<DeliveryFailure>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub died_at: Option<String>,
    /// When the next attempt is due, if a redelivery was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub next_attempt_at: Option<String>,
}

/// A webhook of a session, or of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NewWebhook {
    /// Id or name of a session: its events from now on. Give either this or `run_id`.
    pub session: Option<String>,
    /// Id of a run: all its events, past and future, up to its end.
    pub run_id: Option<String>,
    #[schema(required = true)]
    pub url: String,
    /// Names of event types, or families such as `run.*`. Empty means all.
    pub types: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WebhookChange {
    /// False disables deliveries; true resumes them where they stopped.
    pub enabled: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RedeliveryRequest {
    /// Id of a dead letter; all of the webhook if omitted.
    pub delivery_id: Option<String>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Redelivery {
    /// How many dead letters are scheduled for redelivery.
    pub count: u64,
}

/// The result of a test delivery.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct WebhookTest {
    /// The header `webhook-id` of the test.
    pub delivery_id: String,
    pub accepted: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<DeliveryFailure>,
    /// The HTTP status. Omitted if the receiver did not respond.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
}

fn status(number: u32) -> Option<u32> {
    (number > 0).then_some(number)
}

impl From<v1::Webhook> for Webhook {
    fn from(webhook: v1::Webhook) -> Self {
        Self {
            id: webhook.id,
            session_id: webhook.session_id,
            run_id: text(webhook.run_id),
            url: webhook.url,
            types: webhook.types,
            state: webhook.state,
            cursor: webhook.cursor,
            attempts: webhook.attempts,
            next_attempt_at: time(webhook.next_attempt_at),
            last_failure: webhook.last_failure.map(Into::into),
            delivered_at: time(webhook.delivered_at),
            dead_letters: webhook.dead_letters,
            dropped_dead_letters: webhook.dropped_dead_letters,
            previous_secret_until: time(webhook.previous_secret_until),
            created_at: time(webhook.created_at),
            secret: None,
        }
    }
}

impl Webhook {
    /// Adds the secret, which is shown only once.
    #[must_use]
    pub fn with_secret(webhook: v1::Webhook, secret: String) -> Self {
        Self { secret: text(secret), ..webhook.into() }
    }
}

impl From<v1::DeliveryFailure> for DeliveryFailure {
    fn from(failure: v1::DeliveryFailure) -> Self {
        Self { status: status(failure.status), message: failure.message }
    }
}

impl From<v1::DeadLetter> for DeadLetter {
    fn from(letter: v1::DeadLetter) -> Self {
        Self {
            id: letter.id,
            webhook_id: letter.webhook_id,
            event_id: letter.event_id,
            event_type: letter.event_type,
            cursor: letter.cursor,
            run_id: text(letter.run_id),
            event_at: time(letter.event_at),
            attempts: letter.attempts,
            failure: letter.failure.map(Into::into),
            died_at: time(letter.died_at),
            next_attempt_at: time(letter.next_attempt_at),
        }
    }
}

impl From<NewWebhook> for v1::CreateWebhookRequest {
    fn from(new: NewWebhook) -> Self {
        Self {
            session: new.session.unwrap_or_default(),
            run_id: new.run_id.unwrap_or_default(),
            url: new.url,
            types: list(new.types),
        }
    }
}

impl From<v1::TestWebhookResponse> for WebhookTest {
    fn from(answer: v1::TestWebhookResponse) -> Self {
        Self {
            delivery_id: answer.delivery_id,
            accepted: answer.accepted,
            failure: answer.failure.map(Into::into),
            status: status(answer.status),
            duration_ms: millis(answer.duration),
        }
    }
}
