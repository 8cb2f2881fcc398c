//! The stream service over gRPC, and what it shares with HTTP.

use std::{
    collections::{BTreeMap, HashMap},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use futures::{Stream, StreamExt as _, stream};
use remuda_domain::{Cursor, Error, Event, SessionId, error::Result, event::Delta, identity::Scope};
use remuda_grpc::{Gate, RequestId, limited, log_and_convert, record_caller};
use remuda_proto::{
    convert::typed_event,
    v1::{
        SubscribeRequest, SubscribeResponse,
        stream_service_server::{StreamService, StreamServiceServer},
        subscribe_request::Target,
    },
};
use remuda_store::Store;
use remuda_transport::Transport;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::{
    Extensions, Request, Response, Status, async_trait, codegen::http::HeaderMap, service::RoutesBuilder,
};
use tracing::{Span, error_span};

use crate::{
    reader::{Batch, Reader},
    readers::{Readers, StreamTarget, SubscribeOptions},
    session_tree::MAX_SESSIONS,
    shared_event::SharedEvent,
};

#[derive(Clone, Debug)]
pub struct StreamOptions {
    /// Concurrent readers; more are rejected with a retry hint.
    pub max_readers: usize,
    /// Events per read from the store.
    pub replay_batch: usize,
    /// How often all followed sessions are compared with the store.
    pub catch_up: Duration,
}

/// What streams need.
pub struct StreamParts {
    pub store: Arc<dyn Store>,
    pub transport: Arc<dyn Transport>,
    pub gate: Gate,
    /// Background tasks of all readers, until a little after `stop`.
    pub tasks: TaskTracker,
    /// Streams end soon after it with an error that asks clients to reconnect.
    pub stop: CancellationToken,
}

impl std::fmt::Debug for StreamParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamParts").field("gate", &self.gate).finish_non_exhaustive()
    }
}

/// The streams of a server, for all protocols. Cheap to clone.
#[derive(Clone)]
pub struct Streams {
    readers: Readers,
    gate: Gate,
}

impl std::fmt::Debug for Streams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Streams").field("gate", &self.gate).finish_non_exhaustive()
    }
}

impl Streams {
    #[must_use]
    pub fn new(parts: StreamParts, options: &StreamOptions) -> Self {
        let StreamParts { store, transport, gate, tasks, stop } = parts;
        let readers = Readers::new(store, transport, options, &tasks, stop.clone());
        let keys = gate.clone();
        tasks.spawn(async move { stop.run_until_cancelled(keys.watch_keys()).await });
        Self { readers, gate }
    }

    /// Adds the stream service to a gRPC server.
    pub fn add_to(&self, routes: &mut RoutesBuilder) {
        routes.add_service(limited!(StreamServiceServer::new(self.clone())));
    }

    /// Opens a stream for the caller with these headers. The extensions are those of the request.
    pub(crate) async fn open(
        &self,
        headers: &HeaderMap,
        extensions: &Extensions,
        body: SubscribeRequest,
    ) -> Result<Reader> {
        let (caller, standing) = self.gate.admit_stream(headers, Scope::Read).await?;
        record_caller(extensions, &caller);
        let target = match body.target {
            None => return Err(Error::invalid("target", "expected a session or a run")),
            Some(Target::Session(text)) => StreamTarget::Session(text),
            Some(Target::RunId(text)) => StreamTarget::Run(text),
        };
        let cursors = tree_cursors(&body.tree_cursors)?;
        let options = SubscribeOptions {
            after: body.after_cursor,
            deltas: body.deltas,
            tree: body.tree.then_some(cursors),
        };
        self.readers.open(caller.tenant, standing, &target, options).await
    }
}

/// Parses the reader's cursors in descendant sessions.
fn tree_cursors(given: &BTreeMap<String, Cursor>) -> Result<HashMap<SessionId, Cursor>> {
    if given.len() > MAX_SESSIONS {
        return Err(Error::invalid("tree_cursors", format!("expected at most {MAX_SESSIONS} sessions")));
    }
    let read = |(session, cursor): (&String, &Cursor)| match session.parse::<SessionId>() {
        Ok(session) if *cursor >= 0 => Ok((session, *cursor)),
        _ => Err(Error::invalid("tree_cursors", "expected ids of sessions with cursors of 0 or more")),
    };
    given.iter().map(read).collect()
}

/// The span of a request that was answered earlier. Recreated where it is needed, so that thousands of readers need
/// not keep theirs.
pub(crate) fn request_span(request_id: Option<&str>) -> Span {
    error_span!("request", request_id)
}

/// Rarely requested, so it is not cached.
fn typed_response(event: &Event) -> SubscribeResponse {
    SubscribeResponse { event: Some(typed_event(event.clone())), delta: None }
}

fn event_response(event: &Event) -> SubscribeResponse {
    SubscribeResponse { event: Some(event.clone().into()), delta: None }
}

fn delta_response(delta: &Delta) -> SubscribeResponse {
    SubscribeResponse { event: None, delta: Some(delta.clone().into()) }
}

#[async_trait]
impl StreamService for Streams {
    type SubscribeStream = Pin<Box<dyn Stream<Item = Result<SubscribeResponse, Status>> + Send>>;

    async fn subscribe(
        &self,
        request: Request<SubscribeRequest>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let (metadata, extensions, body) = request.into_parts();
        let id = extensions.get::<RequestId>().map(|id| id.0.clone());
        let typed = body.typed;
        let opened = self.open(metadata.as_ref(), &extensions, body).await;
        let reader = opened.map_err(|error| log_and_convert(&error))?;
        let batches = stream::unfold(reader, |mut reader| async move {
            let batch = reader.next().await?;
            Some((batch, reader))
        });
        let responses = batches.flat_map(move |batch| {
            let responses: Vec<Result<SubscribeResponse, Status>> = match batch {
                Ok(Batch::Events(events)) => {
                    let response = |event: &SharedEvent| {
                        if typed { typed_response(event) } else { event.response(event_response) }
                    };
                    events.iter().map(|event| Ok(response(event))).collect()
                }
                Ok(Batch::Deltas(deltas)) => {
                    deltas.iter().map(|delta| Ok(delta.response(delta_response))).collect()
                }
                Err(error) => vec![Err(request_span(id.as_deref()).in_scope(|| log_and_convert(&error)))],
            };
            stream::iter(responses)
        });
        Ok(Response::new(Box::pin(responses)))
    }
}

#[cfg(test)]
mod tests {
    use remuda_domain::Code;

    use super::*;

    #[test]
    fn tree_cursors_are_validated() {
        let read = |session: &str, cursor| tree_cursors(&BTreeMap::from([(session.to_owned(), cursor)]));
        let session = SessionId::new();
        assert_eq!(read(&session.to_string(), 7).unwrap(), HashMap::from([(session, 7)]));
        let many = (0..=MAX_SESSIONS).map(|_| (SessionId::new().to_string(), 1)).collect();
        let wrong = [read(&session.to_string(), -1), read("s1", 1), read("", 1), tree_cursors(&many)];
        for result in wrong {
            let error = result.unwrap_err();
            assert_eq!((error.code(), error.field()), (Code::InvalidArgument, Some("tree_cursors")));
        }
    }
}
