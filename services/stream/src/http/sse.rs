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
use remuda_domain::{Code, Cursor, Error, error::Result};
use remuda_http::{RequestId, error_body};
use remuda_proto::v1;
use serde::Serialize;
use tokio::time::{Instant, timeout_at};

use super::{filter::Filter, place::Place};
use crate::{
    reader::{Reader, Said},
    service::again,
    shared::{SharedDelta, SharedEvent},
};

/// Proxies end connections that are silent for a minute, some after thirty seconds.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How long clients should wait before they reconnect: each another time, so that they do not come all at once.
const RETRY_MS: std::ops::Range<u32> = 500..3000;

/// The stream as a response. Headers keep proxies from holding events back.
/// `first` is what was read already.
pub(super) fn response(
    reader: Reader,
    first: Option<Result<Said>>,
    (filter, place): (Filter, Option<Place>),
    RequestId(request): RequestId,
) -> Response {
    let telling = Telling {
        reader,
        first,
        filter,
        place,
        request,
        passed: None,
        stage: Stage::Opening,
        quiet_until: Instant::now() + KEEP_ALIVE,
    };
    let mut response = Body::from_stream(events(telling)).into_response();
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

struct Telling {
    reader: Reader,
    first: Option<Result<Said>>,
    filter: Filter,
    /// Where the reader stands in the session and in those below, if these are told of too.
    place: Option<Place>,
    request: String,
    /// The cursor of an event that was not wanted: told now and then, so that a reader who reconnects need not pass it again.
    passed: Option<Cursor>,
    stage: Stage,
    /// Something is said by then. What is read and not wanted does not count.
    quiet_until: Instant,
}

enum Stage {
    Opening,
    Open,
    Closed,
}

fn events(telling: Telling) -> impl Stream<Item = Result<Bytes, Infallible>> {
    stream::unfold(telling, |mut telling| async move {
        let bytes = telling.next().await?;
        Some((Ok(bytes), telling))
    })
}

impl Telling {
    /// What to send next; `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        match self.stage {
            Stage::Opening => {
                self.stage = Stage::Open;
                return Some(opening());
            }
            Stage::Closed => return None,
            Stage::Open => {}
        }
        loop {
            let said = match self.first.take() {
                Some(first) => Some(first),
                None => match timeout_at(self.quiet_until, self.reader.next()).await {
                    Ok(said) => said,
                    Err(_) => return Some(self.still_here()),
                },
            };
            let text = match said {
                None => self.end(),
                Some(Err(error)) => self.failed(&error),
                Some(Ok(Said::Events(events))) => self.tell(&events),
                Some(Ok(Said::Deltas(deltas))) => pieces(&self.filter, &deltas),
            };
            if !text.is_empty() {
                self.quiet_until = Instant::now() + KEEP_ALIVE;
                return Some(text.into());
            }
        }
    }

    fn tell(&mut self, events: &[SharedEvent]) -> Vec<u8> {
        let mut text = Vec::new();
        for event in events {
            if let Some(place) = &mut self.place
                && let Err(error) = place.pass(self.reader.session(), event.session, event.cursor)
            {
                text.extend(self.failed(&error));
                return text;
            }
            if !self.filter.lets_pass(event.body.name()) {
                self.passed = Some(event.cursor);
                continue;
            }
            self.passed = None;
            let event = event.json(event_text);
            match &self.place {
                None => text.extend_from_slice(&event),
                Some(place) => {
                    // The line with the id is the first.
                    let rest = event.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1);
                    text.extend_from_slice(format!("id: {place}\n").as_bytes());
                    text.extend_from_slice(&event[rest..]);
                }
            }
        }
        text
    }

    fn still_here(&mut self) -> Bytes {
        self.quiet_until = Instant::now() + KEEP_ALIVE;
        match self.passed.take() {
            // Without data it is no event, only a place to go on from.
            Some(cursor) => match &self.place {
                None => format!("id: {cursor}\n\n").into(),
                Some(place) => format!("id: {place}\n\n").into(),
            },
            None => Bytes::from_static(b": still here\n\n"),
        }
    }

    fn end(&mut self) -> Vec<u8> {
        #[derive(Serialize)]
        struct End {
            reason: &'static str,
        }
        self.stage = Stage::Closed;
        written(None, "end", &End { reason: "run_ended" }).into()
    }

    /// Says why there is no more. Whoever reads from a server that stops finds another by connecting again.
    fn failed(&mut self, error: &Error) -> Vec<u8> {
        self.stage = Stage::Closed;
        let body = error_body(error, &self.request);
        if error.code() == Code::Unavailable {
            let retry = rand::rng().random_range(RETRY_MS);
            return format!("retry: {retry}\n{}", written(None, "goodbye", &body)).into();
        }
        again(Some(&self.request)).in_scope(|| remuda_grpc::log(error));
        written(None, "error", &body).into()
    }
}

/// Said at once, so that proxies and clients know that the stream is open.
fn opening() -> Bytes {
    format!(": remuda\nretry: {}\n\n", rand::rng().random_range(RETRY_MS)).into()
}

fn pieces(filter: &Filter, deltas: &[SharedDelta]) -> Vec<u8> {
    let wanted = deltas.iter().filter(|delta| filter.lets_pass(delta.name()));
    wanted.flat_map(|delta| delta.json(delta_text)).collect()
}

fn event_text(event: &remuda_domain::Event) -> Bytes {
    written(Some(event.cursor), event.body.name(), &Event::from(v1::Event::from(event.clone()))).into()
}

/// Named like an event, with what clients see of it beside its type.
fn delta_text(delta: &remuda_domain::event::Delta) -> Bytes {
    #[derive(Serialize)]
    struct Piece {
        r#type: &'static str,
        #[serde(flatten)]
        data: serde_json::Value,
    }
    written(None, delta.name(), &Piece { r#type: delta.name(), data: delta.data() }).into()
}

/// One event. JSON as it is written here has no line breaks.
fn written(id: Option<Cursor>, name: &str, data: &impl Serialize) -> String {
    // What is written has string keys only, which cannot fail.
    let data = serde_json::to_string(data).unwrap_or_default();
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    format!("{id}event: {name}\ndata: {data}\n\n")
}
