//! Streams over HTTP: server-sent events, and long polls for clients that cannot read them.

mod filter;
mod poll;
mod position;
mod sse;

use axum::{
    extract::State,
    response::{IntoResponse as _, Response},
};
use hyper::{HeaderMap, StatusCode, http::request::Parts};
use remuda_domain::{Cursor, Error, error::Result};
use remuda_http::{CommonErrors, ErrorBody, Outcome, Params, RequestId, Segment, wait_time};
use remuda_proto::v1::{SubscribeRequest, subscribe_request::Target};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use self::{filter::Filter, poll::EventPage, position::EventPosition};
use crate::service::Streams;

#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields, default)]
struct EventQuery {
    /// Only events after this cursor. `Last-Event-ID` takes precedence. From the beginning if omitted.
    #[param(minimum = 0)]
    cursor: Option<Cursor>,
    /// Only these types, separated by commas: `run.*,message.completed`. All if omitted.
    #[param(example = "run.*,message.completed")]
    types: String,
    /// Also deltas of messages under way, and the output of tools. They have no cursor.
    deltas: bool,
    /// Also the events of descendant sessions, each with its own `session_id` and cursor; for a run, of the sessions
    /// that work for it. Resume with `Last-Event-ID`, which then names a position in all of them. Not with `wait`.
    tree: bool,
    /// Respond with JSON instead of a stream: immediately if there are events after the cursor, else as soon as there
    /// are, and no later than this: `30s`, at most a minute.
    #[param(example = "30s")]
    wait: Option<String>,
}

impl Streams {
    /// The routes of streams, with their descriptions.
    pub fn routes(&self) -> OpenApiRouter {
        OpenApiRouter::new()
            .routes(routes!(session_events))
            .routes(routes!(run_events))
            .with_state(self.clone())
    }
}

/// Events of a session, from its beginning or after a cursor, and live from then on.
///
/// Each event has its cursor as `id`, its type as `event`, and is one line of JSON. See docs/streaming.md.
#[utoipa::path(get, path = "/sessions/{session}/events", tag = "events", operation_id = "session_events",
    params(("session" = String, Path, description = "Id or name."), ("last-event-id" = Option<String>, Header, pattern = "^[0-9]+(;ses_[0-9a-z]{26}=[0-9]+)*$", description = "The id of the last event you have."), EventQuery),
    responses(
        (status = 200, content((String = "text/event-stream"), (EventPage = "application/json")), description = "Events; with `wait`, a page of them."),
        (status = 416, body = ErrorBody, description = "The cursor lies beyond the newest event."),
        CommonErrors))]
async fn session_events(
    State(streams): State<Streams>,
    Segment(session): Segment,
    Params(query): Params<EventQuery>,
    head: Parts,
    axum::Extension(request): axum::Extension<RequestId>,
) -> Outcome<Response> {
    respond(&streams, Target::Session(session), query, &head, request).await
}

/// Events of a run, up to its end: the same events as in its session's stream, with the same cursors.
///
/// The last one is `end`. A client that reconnects after it gets 204, which tells an `EventSource` to stop.
#[utoipa::path(get, path = "/runs/{run_id}/events", tag = "events", operation_id = "run_events",
    params(("run_id" = String, Path, pattern = "^run_[0-9a-z]{26}$", description = "run_…"), ("last-event-id" = Option<String>, Header, pattern = "^[0-9]+(;ses_[0-9a-z]{26}=[0-9]+)*$", description = "The id of the last event you have."), EventQuery),
    responses(
        (status = 200, content((String = "text/event-stream"), (EventPage = "application/json")), description = "Events; with `wait`, a page of them."),
        (status = 204, description = "The run has ended, and you have all its events."),
        (status = 416, body = ErrorBody, description = "The cursor lies beyond the newest event."),
        CommonErrors))]
async fn run_events(
    State(streams): State<Streams>,
    Segment(run_id): Segment,
    Params(query): Params<EventQuery>,
    head: Parts,
    axum::Extension(request): axum::Extension<RequestId>,
) -> Outcome<Response> {
    respond(&streams, Target::RunId(run_id), query, &head, request).await
}

async fn respond(
    streams: &Streams,
    target: Target,
    query: EventQuery,
    head: &Parts,
    request: RequestId,
) -> Outcome<Response> {
    let filter = Filter::parse(&query.types)?;
    let position = position(&query, &head.headers)?;
    let after = position.cursor;
    let wait = query.wait.as_deref().map(|text| wait_time("wait", text, poll::MAX_WAIT)).transpose()?;
    if query.tree && wait.is_some() {
        return Err(Error::invalid("tree", "cannot be combined with wait: read the stream").into());
    }
    let ends = matches!(target, Target::RunId(_));
    let subscription = SubscribeRequest {
        target: Some(target),
        after_cursor: after,
        deltas: query.deltas && wait.is_none(),
        tree: query.tree,
        tree_cursors: position
            .descendants
            .iter()
            .map(|(session, cursor)| (session.to_string(), *cursor))
            .collect(),
        ..SubscribeRequest::default()
    };
    let mut reader =
        streams.open(&head.headers, &head.extensions, subscription).await.map_err(rename_cursor_field)?;
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
    Ok(sse::response(reader, first, (filter, query.tree.then_some(position)), request))
}

/// The HTTP parameter has another name than the gRPC field.
fn rename_cursor_field(error: Error) -> Error {
    if error.field() == Some("after_cursor") { error.at("cursor") } else { error }
}

/// A browser that reconnects repeats the URL and sends its progress in the header.
fn position(query: &EventQuery, headers: &HeaderMap) -> Result<EventPosition> {
    let Some(value) = headers.get("last-event-id") else {
        return Ok(EventPosition { cursor: query.cursor.unwrap_or_default(), ..EventPosition::default() });
    };
    let position = value.to_str().ok().and_then(EventPosition::parse);
    position
        .filter(|position| query.tree || position.descendants.is_empty())
        .ok_or_else(|| Error::invalid("last-event-id", "expected the id of an event of this stream"))
}
