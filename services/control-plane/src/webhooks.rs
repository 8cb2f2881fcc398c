//! Webhook delivery, following the Standard Webhooks convention.
//!
//! A webhook is a durable reader of its session: its cursor, its failed attempts and the time of the next attempt are in
//! the store. One control plane at a time delivers: the one that runs the [reconciler](crate::Reconciler). It subscribes
//! to live events of sessions that have webhooks, and scans all webhooks now and then for events that it missed.
//!
//! - Ordered: each webhook gets its events one at a time and in order. An event that cannot be delivered holds back those
//!   after it until it becomes a dead letter.
//! - At least once: after a crash the last delivery may be repeated, under the same `webhook-id`.
//! - Isolated: a slow or unreachable receiver takes one of [`scheduler::MAX_PASSES`] concurrent passes for at most one
//!   request timeout, and then waits for its next pass. One tenant takes at most three quarters of them.

mod body;
mod deliverer;
mod delivery_pass;
mod notifier;
mod scheduler;
mod sender;
mod session_listeners;
mod signature;

pub use self::sender::WebhookOptions;
pub(crate) use self::{
    body::test as test_body,
    deliverer::Deliverer,
    notifier::DeliveryNotifier,
    sender::{Delivery, SendOutcome, WebhookSender},
    signature::{new_secret, secret_text},
};
