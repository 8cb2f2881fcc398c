//! What many readers are sent.

use std::{
    fmt,
    ops::Deref,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use remuda_domain::{Event, event::Delta};
use remuda_proto::v1::SubscribeResponse;

/// An event for all who read it.
pub(crate) type SharedEvent = Arc<Shared<Event>>;
/// A piece of a message for all who read it.
pub(crate) type SharedDelta = Arc<Shared<Delta>>;

/// Something that many readers are sent: each form in which it goes over the wire is made once, by the first who needs it.
pub(crate) struct Shared<T> {
    item: T,
    json: OnceLock<Bytes>,
    response: OnceLock<Box<SubscribeResponse>>,
}

impl<T> Shared<T> {
    pub(crate) fn new(item: T) -> Self {
        Self { item, json: OnceLock::new(), response: OnceLock::new() }
    }

    /// Its text, which `write` makes. Whoever asks gets the text of the first who asked, so there can be only one way to write it.
    pub(crate) fn json(&self, write: impl FnOnce(&T) -> Bytes) -> Bytes {
        self.json.get_or_init(|| write(&self.item)).clone()
    }

    /// Its message, which `write` makes. Like [`Shared::json`].
    pub(crate) fn response(&self, write: impl FnOnce(&T) -> SubscribeResponse) -> SubscribeResponse {
        SubscribeResponse::clone(self.response.get_or_init(|| Box::new(write(&self.item))))
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.item
    }
}

impl<T: fmt::Debug> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.item.fmt(f)
    }
}

impl<T: PartialEq> PartialEq for Shared<T> {
    fn eq(&self, other: &Self) -> bool {
        self.item == other.item
    }
}
