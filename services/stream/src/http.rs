//! Streams over HTTP: server-sent events, and long polls for those who cannot read them.

mod filter;
mod place;
mod poll;
mod sse;

use axum::{
    extract::State,
    response::{IntoResponse as _, Response},
};
use hyper::{HeaderMap, StatusCode, http::request::Parts};
use remuda_domain::{Cursor, Error, error::Result};
use remuda_http::{ErrorBody, Outcome, Params, Refusals, RequestId, Segment, wait_time};
use remuda_proto::v1::{SubscribeRequest, subscribe_request::Target};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use self::{filter::Filter, place::Place, poll::EventPage};
use crate::service::Streams;

#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields, default)]
struct Wishes {
    /// Only what comes after this cursor. `Last-Event-ID` counts more. From the beginning when left out.
    #[param(minimum = 0)]
    cursor: Option<Cursor>,
    /// Only these types, separated by commas: `run.*,message.completed`. All when left out.
    #[param(example = "run.*,message.completed")]
    types: String,
    /// Also the pieces of messages that are being said, and the output of tools. They have no cursor.
    deltas: bool,
    /// Also what happens in the sessions below, each event with its own `session_id` and cursor; of a run, in those that work for it.
    /// Go on with `Last-Event-ID`, which then names a place in all of them. Not with `wait`.
    tree: bool,
    /// Answer with JSON instead of a stream: at once if there is something after the cursor, else as soon as there is, and no later than
    /// this: `30s`, at most a minute.
    #[param(example = "30s")]
    wait: Option<String>,
}

impl Streams {
    /// The paths of streams, with their descriptions.
    pub fn routes(&self) -> OpenApiRouter {
        OpenApiRouter::new()
            .routes(routes!(session_events))
            .routes(routes!(run_events))
            .with_state(self.clone())
    }
}

/// What happens in a session, from its beginning or after a cursor, and on as it happens.
///
/// Each event has its cursor as `id`, its type as `event`, and is one line of JSON. See docs/streaming.md.
#[utoipa::path(get, path = "/sessions/{session}/events", tag = "events", operation_id = "session_events",
    params(("session" = String, Path, description = "Id or name."), ("last-event-id" = Option<String>, Header, pattern = "^[0-9]+(;ses_[0-9a-z]{26}=[0-9]+)*$", description = "The id of the last event you have."), Wishes),
    responses(
        (status = 200, content((String = "text/event-stream"), (EventPage = "application/json")), description = "Events; with `wait`, a page of them."),
        (status = 416, body = ErrorBody, description = "The cursor lies beyond the newest event."),
        Refusals))]
async fn session_events(
    State(streams): State<Streams>,
    Segment(session): Segment,
    Params(wishes): Params<Wishes>,
    head: Parts,
    axum::Extension(request): axum::Extension<RequestId>,
) -> Outcome<Response> {
    answer(&streams, Target::Session(session), wishes, &head, request).await
}

/// What happens in a run, up to its end: the same events as in its session's stream, with the same cursors.
///
/// The last one is `end`. Who reconnects after it gets 204, which tells an `EventSource` to stop.
#[utoipa::path(get, path = "/runs/{run_id}/events", tag = "events", operation_id = "run_events",
    params(("run_id" = String, Path, pattern = "^run_[0-9a-z]{26}$", description = "run_…"), ("last-event-id" = Option<String>, Header, pattern = "^[0-9]+(;ses_[0-9a-z]{26}=[0-9]+)*$", description = "The id of the last event you have."), Wishes),
    responses(
        (status = 200, content((String = "text/event-stream"), (EventPage = "application/json")), description = "Events; with `wait`, a page of them."),
        (status = 204, description = "The run is over, and you have all its events."),
        (status = 416, body = ErrorBody, description = "The cursor lies beyond the newest event."),
        Refusals))]
async fn run_events(
    State(streams): State<Streams>,
    Segment(run_id): Segment,
    Params(wishes): Params<Wishes>,
    head: Parts,
    axum::Extension(request): axum::Extension<RequestId>,
) -> Outcome<Response> {
    answer(&streams, Target::RunId(run_id), wishes, &head, request).await
}

async fn answer(
    streams: &Streams,
    target: Target,
    wishes: Wishes,
    head: &Parts,
    request: RequestId,
) -> Outcome<Response> {
    let filter = Filter::parse(&wishes.types)?;
    let place = place(&wishes, &head.headers)?;
    let after = place.cursor;
    let wait = wishes.wait.as_deref().map(|text| wait_time("wait", text, poll::MAX_WAIT)).transpose()?;
    if wishes.tree && wait.is_some() {
        return Err(Error::invalid("tree", "expected no wait beside it: follow the stream").into());
    }
    let ends = matches!(target, Target::RunId(_));
    let subscription = SubscribeRequest {
        target: Some(target),
        after_cursor: after,
        deltas: wishes.deltas && wait.is_none(),
        tree: wishes.tree,
        tree_cursors: place.below.iter().map(|(session, cursor)| (session.to_string(), *cursor)).collect(),
        ..SubscribeRequest::default()
    };
    let mut reader =
        streams.open(&head.headers, &head.extensions, subscription).await.map_err(at_the_cursor)?;
    if let Some(wait) = wait {
        return Ok(poll::page(&mut reader, &filter, after, wait).await?.into_response());
    }
    let mut first = None;
    if ends && after > 0 && reader.run_is_over().await? {
        first = reader.next().await;
        if first.is_none() {
            return Ok(StatusCode::NO_CONTENT.into_response());
        }
    }
    Ok(sse::response(reader, first, (filter, wishes.tree.then_some(place)), request))
}

/// Here the field has another name.
fn at_the_cursor(error: Error) -> Error {
    if error.field() == Some("after_cursor") { error.at("cursor") } else { error }
}

/// A browser that reconnects asks for the same address as before, and says in the header what it has got since.
fn place(wishes: &Wishes, headers: &HeaderMap) -> Result<Place> {
    let Some(value) = headers.get("last-event-id") else {
        return Ok(Place { cursor: wishes.cursor.unwrap_or_default(), ..Place::default() });
    };
    let place = value.to_str().ok().and_then(Place::parse);
    place
        .filter(|place| wishes.tree || place.below.is_empty())
        .ok_or_else(|| Error::invalid("last-event-id", "expected the id of an event of this stream"))
}
