//! Events and deltas shared by many readers.

use std::{
    fmt,
    ops::Deref,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use remuda_domain::{Event, event::Delta};
use remuda_proto::v1::SubscribeResponse;

/// An event, shared by its readers.
pub(crate) type SharedEvent = Arc<Shared<Event>>;
/// A delta, shared by its readers.
pub(crate) type SharedDelta = Arc<Shared<Delta>>;

/// An item that is sent to many readers: each wire format is created once, by the first reader that needs it.
pub(crate) struct Shared<T> {
    item: T,
    json: OnceLock<Bytes>,
    response: OnceLock<Box<SubscribeResponse>>,
}

impl<T> Shared<T> {
    pub(crate) fn new(item: T) -> Self {
        Self { item, json: OnceLock::new(), response: OnceLock::new() }
    }

    /// Its JSON, created by `write` on the first call. All callers get the result of the first, so all must write the
    /// same.
    pub(crate) fn json(&self, write: impl FnOnce(&T) -> Bytes) -> Bytes {
        self.json.get_or_init(|| write(&self.item)).clone()
    }

    /// Its gRPC message, created by `write` on the first call. Like [`Shared::json`].
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
