//! Live events and deltas over core NATS: at most once. The source of a reader that missed something ends.

use std::{
    marker::PhantomData,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_nats::Subscriber;
use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use remuda_domain::{Event, error::Result, event::Delta, trace::TraceContext};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    sync::{
        mpsc::{self, Receiver, Sender},
        watch,
    },
    time::timeout,
};

use super::{
    Shared,
    envelope::{Envelope, Kind, Opened, ReplayWindow},
};
use crate::traits::{DeltaSource, EventSource};

/// How long a publish may take. Readers find in the store what was dropped.
const PUBLISH_TIMEOUT: Duration = Duration::from_millis(50);
/// Limits of a reader's buffer, in batches and in bytes. Its source ends when it is full.
const BUFFERED_BATCHES: usize = 256;
const BUFFERED_BYTES: usize = 8 * 1024 * 1024;

/// JSON that is sent without being copied.
pub(super) struct SharedJson(pub(super) Arc<str>);

impl AsRef<[u8]> for SharedJson {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// Sends items to the current subscribers of the subject, in order. `text` is their JSON, if it exists already.
pub(super) async fn publish<T: Serialize>(
    shared: &Shared,
    subject: String,
    items: &[T],
    text: Option<Bytes>,
    origin: Option<TraceContext>,
) {
    if items.is_empty() || !shared.events.is_connected() {
        return;
    }
    let limit = shared.events.max_message();
    let payloads = match text.filter(|text| text.len() <= limit) {
        Some(text) => vec![text],
        None => batches(items, limit),
    };
    let send = async {
        for payload in payloads {
            let message = shared.envelope.seal(&subject, payload, origin);
            if let Err(error) = shared.events.enqueue(subject.clone(), message).await {
                tracing::debug!(subject, %error, "message dropped: the connection is closed");
                return;
            }
        }
    };
    if timeout(PUBLISH_TIMEOUT, send).await.is_err() {
        tracing::debug!(subject, "messages dropped: the connection is congested");
    }
}

/// Packs items into as few JSON arrays of at most `limit` bytes as possible, in order. An item that is too large is
/// dropped.
pub(super) fn batches<T: Serialize>(items: &[T], limit: usize) -> Vec<Bytes> {
    let mut batches = Vec::new();
    let mut current: Vec<u8> = Vec::new();
    for item in items {
        let json = match serde_json::to_vec(item) {
            Ok(json) if json.len() + 2 <= limit => json,
            Ok(json) => {
                tracing::debug!(size = json.len(), limit, "item dropped: too large");
                continue;
            }
            Err(error) => {
                tracing::debug!(%error, "item dropped: cannot encode it as JSON");
                continue;
            }
        };
        if !current.is_empty() && current.len() + 1 + json.len() + 1 > limit {
            batches.push(close(&mut current));
        }
        current.push(if current.is_empty() { b'[' } else { b',' });
        current.extend(json);
    }
    if !current.is_empty() {
        batches.push(close(&mut current));
    }
    batches
}

fn close(array: &mut Vec<u8>) -> Bytes {
    array.push(b']');
    Bytes::from(std::mem::take(array))
}

/// A subscription to one subject. A task moves messages from the connection into a bounded buffer, so a reader that
/// stops reading loses its own source and does not affect others.
pub(super) struct LiveSource<T> {
    subject: String,
    buffer: Receiver<Opened>,
    buffered: Arc<AtomicUsize>,
    /// Trace context of the last batch.
    origin: Option<TraceContext>,
    items: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> LiveSource<T> {
    pub(super) async fn subscribe(shared: &Shared, kind: Kind, subject: String) -> Result<Self> {
        // Before the subscription: a loss in between must end it.
        let losses = shared.events.losses();
        let subscriber = shared.events.subscribe(subject.clone(), &shared.subjects.no_responders()).await?;
        Ok(Self::new(shared, kind, subject, subscriber, losses))
    }

    /// Like [`subscribe`](Self::subscribe), without waiting for the server.
    pub(super) async fn subscribe_unconfirmed(shared: &Shared, kind: Kind, subject: String) -> Result<Self> {
        let losses = shared.events.losses();
        let subscriber = shared.events.subscribe_unconfirmed(subject.clone()).await?;
        Ok(Self::new(shared, kind, subject, subscriber, losses))
    }

    fn new(
        shared: &Shared,
        kind: Kind,
        subject: String,
        subscriber: Subscriber,
        losses: watch::Receiver<u64>,
    ) -> Self {
        let (sender, buffer) = mpsc::channel(BUFFERED_BATCHES);
        let buffered = Arc::new(AtomicUsize::new(0));
        let pump =
            Pump { envelope: Arc::clone(&shared.envelope), kind, sender, buffered: Arc::clone(&buffered) };
        shared.tasks.spawn(pump.run(subscriber, losses));
        Self { subject, buffer, buffered, origin: None, items: PhantomData }
    }

    async fn next_batch(&mut self) -> Option<Vec<T>> {
        loop {
            let Opened { sender, payload, origin } = self.buffer.recv().await?;
            self.origin = origin;
            self.buffered.fetch_sub(payload.len(), Ordering::Relaxed);
            if sender.is_none() {
                return Some(Vec::new());
            }
            match serde_json::from_slice(&payload) {
                Ok(items) => return Some(items),
                // From a newer version, for example. A reader of events notices the gap in the cursors.
                Err(error) => tracing::warn!(subject = self.subject, %error, "cannot decode a batch"),
            }
        }
    }
}

/// Moves messages from the connection into the buffer of a reader.
struct Pump {
    envelope: Arc<Envelope>,
    kind: Kind,
    sender: Sender<Opened>,
    buffered: Arc<AtomicUsize>,
}

impl Pump {
    /// Fills the buffer until the reader is gone or lags, or messages may have been lost. The source ends with it.
    async fn run(self, mut subscriber: Subscriber, mut losses: watch::Receiver<u64>) {
        let mut received = ReplayWindow::default();
        loop {
            let message = tokio::select! {
                message = subscriber.next() => message,
                _ = losses.changed() => return,
                () = self.sender.closed() => return,
            };
            let Some(message) = message else { return };
            let Some(mut opened) = self.envelope.open(self.kind, message, &mut received).await else {
                continue;
            };
            if opened.sender.is_none() {
                opened.payload = Bytes::new();
            }
            let size = opened.payload.len();
            if self.buffered.fetch_add(size, Ordering::Relaxed) + size > BUFFERED_BYTES {
                return;
            }
            if self.sender.try_send(opened).is_err() {
                return;
            }
        }
    }
}

#[async_trait]
impl EventSource for LiveSource<Event> {
    async fn next(&mut self) -> Option<Vec<Event>> {
        self.next_batch().await
    }

    fn origin(&self) -> Option<TraceContext> {
        self.origin
    }
}

#[async_trait]
impl DeltaSource for LiveSource<Delta> {
    async fn next(&mut self) -> Option<Vec<Delta>> {
        self.next_batch().await
    }
}

#[cfg(test)]
mod tests {
    use chrono::Utc;
    use remuda_domain::{EventBody, EventId, SessionId};

    use super::*;

    fn event(cursor: i64, kind: &str) -> Event {
        let body = EventBody::RunQueued {
            seq: cursor,
            kind: kind.to_owned(),
            pending: 1,
            labels: Default::default(),
        };
        Event { id: EventId::new(), cursor, session: SessionId::new(), run: None, at: Utc::now(), body }
    }

    #[test]
    fn batches_fit_and_keep_order() {
        let events: Vec<Event> = (1..=50).map(|cursor| event(cursor, "tools")).collect();
        let size = serde_json::to_vec(&events).unwrap().len();
        for limit in [size, size - 1, size / 3, 400] {
            let batches = batches(&events, limit);
            assert!(batches.iter().all(|batch| batch.len() <= limit));
            assert_eq!(batches.len() == 1, limit == size);
            let back: Vec<Event> = batches
                .iter()
                .flat_map(|batch| serde_json::from_slice::<Vec<Event>>(batch).unwrap())
                .collect();
            assert_eq!(back, events);
        }
    }

    #[test]
    fn event_too_large_for_any_batch_is_dropped() {
        let events = [event(1, "tools"), event(2, &"x".repeat(1000)), event(3, "tools")];
        let back: Vec<Event> = serde_json::from_slice(&batches(&events, 600)[0]).unwrap();
        assert_eq!(back, [events[0].clone(), events[2].clone()]);
        assert!(batches::<Event>(&[], 600).is_empty());
    }
}
