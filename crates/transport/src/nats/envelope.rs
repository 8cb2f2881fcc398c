//! The envelope of every message between services on the bus.
//!
//! All of them pass [`seal`] before they are published and [`open`] when they are received. The payload is the message
//! itself; what is said *about* it stands in headers, which versions that do not know them ignore. Today this is the
//! trace context. The proof of who sent a message belongs here.

use async_nats::{HeaderMap, Message};
use bytes::Bytes;
use remuda_domain::trace::TraceContext;

const TRACEPARENT: &str = "traceparent";

/// A message to publish.
pub(super) struct Sealed {
    /// `None` if there is nothing to say: messages without headers are cheaper.
    pub(super) headers: Option<HeaderMap>,
    pub(super) payload: Bytes,
}

/// A received message.
pub(super) struct Opened {
    pub(super) payload: Bytes,
    /// The trace context that it was published with.
    pub(super) origin: Option<TraceContext>,
}

pub(super) fn seal(payload: Bytes, origin: Option<TraceContext>) -> Sealed {
    let headers = origin.map(|origin| {
        let mut headers = HeaderMap::new();
        headers.insert(TRACEPARENT, origin.to_string().as_str());
        headers
    });
    Sealed { headers, payload }
}

pub(super) fn open(message: Message) -> Opened {
    Opened { origin: message.headers.as_ref().and_then(origin), payload: message.payload }
}

/// An invalid `traceparent` is ignored: a message is worth more than its trace.
fn origin(headers: &HeaderMap) -> Option<TraceContext> {
    headers.get(TRACEPARENT)?.as_str().parse().ok()
}
