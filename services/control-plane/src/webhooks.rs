//! Delivering events to webhooks, by the convention of Standard Webhooks.
//!
//! A webhook is a durable reader of its session: its place, its failed attempts and the time of the next one are in the store.
//! One control plane at a time delivers: the one that runs the [reconciler](crate::Reconciler). It hears live events of
//! sessions that have webhooks, and looks through all webhooks now and then for what it did not hear.
//!
//! - Events go out in their order, one at a time for each webhook. An event that cannot be delivered holds back those after it
//!   until it is given up.
//! - At least once: after a crash the last delivery may be repeated, under the same `webhook-id`.
//! - A receiver that is slow or away costs one of [`desk::PLACES`] places for as long as one request may take,
//!   and then has to wait for its next turn; the others go on. No tenant has more than three quarters of the places.

mod bell;
mod body;
mod courier;
mod deliverer;
mod desk;
mod signature;
mod turn;
mod watch;

pub use self::courier::WebhookOptions;
pub(crate) use self::{
    bell::Bell,
    body::test as test_body,
    courier::{Answer, Courier, Parcel},
    deliverer::Deliverer,
    signature::{new_secret, secret_text},
};
