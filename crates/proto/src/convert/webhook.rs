//! Webhooks and dead letters.

use remuda_domain::webhook::{DeadLetter, DeliveryFailure, Webhook};

use super::timestamp;
use crate::v1;

impl From<DeliveryFailure> for v1::DeliveryFailure {
    fn from(failure: DeliveryFailure) -> Self {
        Self { status: failure.status.map(u32::from).unwrap_or_default(), message: failure.message }
    }
}

impl From<Webhook> for v1::Webhook {
    fn from(webhook: Webhook) -> Self {
        Self {
            id: webhook.id.to_string(),
            session_id: webhook.session.to_string(),
            run_id: webhook.run.map(|run| run.to_string()).unwrap_or_default(),
            url: webhook.url,
            types: webhook.types.into_inner(),
            state: webhook.state.to_string(),
            cursor: webhook.cursor,
            attempts: webhook.attempts,
            next_attempt_at: webhook.next_attempt_at.map(timestamp),
            last_failure: webhook.last_failure.map(Into::into),
            delivered_at: webhook.delivered_at.map(timestamp),
            dead_letters: webhook.dead_letters,
            dropped_dead_letters: webhook.dropped_dead_letters,
            previous_secret_until: webhook.previous_secret_until.map(timestamp),
            created_at: Some(timestamp(webhook.created_at)),
        }
    }
}

impl From<DeadLetter> for v1::DeadLetter {
    fn from(letter: DeadLetter) -> Self {
        let event = letter.event;
        Self {
            id: letter.id.to_string(),
            webhook_id: letter.webhook.to_string(),
            event_id: event.id.to_string(),
            event_type: event.body.name().to_owned(),
            cursor: event.cursor,
            run_id: event.run.map(|run| run.to_string()).unwrap_or_default(),
            event_at: Some(timestamp(event.at)),
            attempts: letter.attempts,
            failure: Some(letter.failure.into()),
            died_at: Some(timestamp(letter.died_at)),
            next_attempt_at: letter.next_attempt_at.map(timestamp),
        }
    }
}
