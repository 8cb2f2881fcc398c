//! Server-sent events.

use std::{convert::Infallible, time::Duration};

use axum::{
    body::Body,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use futures::{Stream, stream};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use rand::Rng as _;
use remuda_api::Event;
use remuda_domain::{Cursor, Error, error::Result};
use remuda_http::{RequestId, error_body};
use remuda_proto::v1;
use serde::Serialize;
use tokio::time::{Instant, timeout_at};

use super::{filter::Filter, position::EventPosition};
use crate::{
    reader::{Batch, Reader},
    service::request_span,
    shared_event::{SharedDelta, SharedEvent},
};

/// Proxies close connections that are silent for a minute, some after thirty seconds.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How long clients should wait before they reconnect. Randomized, so that they do not all come back at once.
const RETRY_MS: std::ops::Range<u32> = 500..3000;

/// The stream as a response. Headers keep proxies from buffering events. `first` is a batch that was read already.
pub(super) fn response(
    reader: Reader,
    first: Option<Result<Batch>>,
    (filter, position): (Filter, Option<EventPosition>),
    RequestId(request): RequestId,
) -> Response {
    let sse_stream = SseStream {
        reader,
        first,
        filter,
        position,
        request,
        skipped: None,
        phase: Phase::Opening,
        keep_alive_at: Instant::now() + KEEP_ALIVE,
    };
    let mut response = Body::from_stream(events(sse_stream)).into_response();
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (CACHE_CONTROL, "no-cache, no-transform"),
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

struct SseStream {
    reader: Reader,
    first: Option<Result<Batch>>,
    filter: Filter,
    /// Position in the session and its descendants, if these are included.
    position: Option<EventPosition>,
    request: String,
    /// Cursor of the last event that was filtered out. It is sent with the next keep-alive, so that a client that
    /// reconnects need not skip it again.
    skipped: Option<Cursor>,
    phase: Phase,
    /// When to send a keep-alive. Events that are filtered out do not postpone it.
    keep_alive_at: Instant,
}

enum Phase {
    Opening,
    Open,
    Closed,
}

fn events(sse_stream: SseStream) -> impl Stream<Item = Result<Bytes, Infallible>> {
    stream::unfold(sse_stream, |mut sse_stream| async move {
        let bytes = sse_stream.next().await?;
        Some((Ok(bytes), sse_stream))
    })
}

impl SseStream {
    /// The next bytes to send; `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        match self.phase {
            Phase::Opening => {
                self.phase = Phase::Open;
                return Some(opening());
            }
            Phase::Closed => return None,
            Phase::Open => {}
        }
        loop {
            let batch = match self.first.take() {
                Some(first) => Some(first),
                None => match timeout_at(self.keep_alive_at, self.reader.next()).await {
                    Ok(batch) => batch,
                    Err(_) => return Some(self.keep_alive()),
                },
            };
            let text = match batch {
                None => self.end(),
                Some(Err(error)) => self.write_error(&error),
                Some(Ok(Batch::Events(events))) => self.write_events(&events),
                Some(Ok(Batch::Deltas(deltas))) => write_deltas(&self.filter, &deltas),
            };
            if !text.is_empty() {
                self.keep_alive_at = Instant::now() + KEEP_ALIVE;
                return Some(text.into());
            }
        }
    }

    fn write_events(&mut self, events: &[SharedEvent]) -> Vec<u8> {
        let mut text = Vec::new();
        for event in events {
            if let Some(position) = &mut self.position
                && let Err(error) = position.advance(self.reader.session(), event.session, event.cursor)
            {
                text.extend(self.write_error(&error));
                return text;
            }
            if !self.filter.matches(event.body.name()) {
                self.skipped = Some(event.cursor);
                continue;
            }
            self.skipped = None;
            let event = event.json(event_text);
            match &self.position {
                None => text.extend_from_slice(&event),
                Some(position) => {
                    // The first line is the id.
                    let rest = event.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1);
                    text.extend_from_slice(format!("id: {position}\n").as_bytes());
                    text.extend_from_slice(&event[rest..]);
                }
            }
        }
        text
    }

    fn keep_alive(&mut self) -> Bytes {
        self.keep_alive_at = Instant::now() + KEEP_ALIVE;
        match self.skipped.take() {
            // Without data it is not an event, only a position to resume from.
            Some(cursor) => match &self.position {
                None => format!("id: {cursor}\n\n").into(),
                Some(position) => format!("id: {position}\n\n").into(),
            },
            None => Bytes::from_static(b": still here\n\n"),
        }
    }

    fn end(&mut self) -> Vec<u8> {
        #[derive(Serialize)]
        struct End {
            reason: &'static str,
        }
        self.phase = Phase::Closed;
        sse_event(None, "end", &End { reason: "run_ended" }).into()
    }

    /// Sends the reason why the stream ends. A client of a stopping server reconnects to another one.
    fn write_error(&mut self, error: &Error) -> Vec<u8> {
        self.phase = Phase::Closed;
        let body = error_body(error, &self.request);
        if error.code().is_outage() {
            let retry = rand::rng().random_range(RETRY_MS);
            return format!("retry: {retry}\n{}", sse_event(None, "goodbye", &body)).into();
        }
        request_span(Some(&self.request)).in_scope(|| remuda_grpc::log(error));
        sse_event(None, "error", &body).into()
    }
}

/// Sent immediately, so that proxies and clients know that the stream is open.
fn opening() -> Bytes {
    format!(": remuda\nretry: {}\n\n", rand::rng().random_range(RETRY_MS)).into()
}

fn write_deltas(filter: &Filter, deltas: &[SharedDelta]) -> Vec<u8> {
    let wanted = deltas.iter().filter(|delta| filter.matches(delta.name()));
    wanted.flat_map(|delta| delta.json(delta_text)).collect()
}

fn event_text(event: &remuda_domain::Event) -> Bytes {
    sse_event(Some(event.cursor), event.body.name(), &Event::from(v1::Event::from(event.clone()))).into()
}

/// Formatted like an event, with its data next to the type.
fn delta_text(delta: &remuda_domain::event::Delta) -> Bytes {
    #[derive(Serialize)]
    struct DeltaData {
        r#type: &'static str,
        #[serde(flatten)]
        data: serde_json::Value,
    }
    sse_event(None, delta.name(), &DeltaData { r#type: delta.name(), data: delta.data() }).into()
}

/// Formats one event. JSON written here has no line breaks.
fn sse_event(id: Option<Cursor>, name: &str, data: &impl Serialize) -> String {
    // Maps have string keys only, so serialization cannot fail.
    let data = serde_json::to_string(data).unwrap_or_default();
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    format!("{id}event: {name}\ndata: {data}\n\n")
}
