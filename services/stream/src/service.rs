//! `StreamService` over gRPC.

use std::{
    collections::{BTreeMap, HashMap},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use futures::{Stream, StreamExt as _, stream};
use remuda_domain::{
    Code, Cursor, Error, RunId, SessionId, TenantId, error::Result, identity::Scope, limits,
    session::SessionRef,
};
use remuda_grpc::{Gate, limited, log_and_convert};
use remuda_proto::v1::{
    SubscribeRequest, SubscribeResponse,
    stream_service_server::{StreamService, StreamServiceServer},
    subscribe_request::Target,
};
use remuda_store::Store;
use remuda_transport::Transport;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, async_trait, service::RoutesBuilder};

use crate::{
    reader::{Reader, Said, Wish},
    tree::{MAX_SESSIONS, Source},
};

#[derive(Clone, Debug)]
pub struct StreamOptions {
    /// Readers at once; more are told to come back later.
    pub max_readers: usize,
    /// Events read from the store at once.
    pub replay_batch: usize,
    /// How often a silent stream is compared with the store.
    pub catch_up: Duration,
}

/// Adds the stream service to a server. Streams end at `stop` with an error that says to reconnect.
pub fn add_service(
    routes: &mut RoutesBuilder,
    store: Arc<dyn Store>,
    transport: Arc<dyn Transport>,
    gate: Gate,
    options: StreamOptions,
    stop: CancellationToken,
) {
    let readers = Arc::new(Semaphore::new(options.max_readers));
    routes.add_service(limited!(StreamServiceServer::new(Streams {
        store,
        transport,
        gate,
        options,
        readers,
        stop
    })));
}

struct Streams {
    store: Arc<dyn Store>,
    transport: Arc<dyn Transport>,
    gate: Gate,
    options: StreamOptions,
    readers: Arc<Semaphore>,
    stop: CancellationToken,
}

/// What a reader asked for.
struct Wanted {
    session: SessionId,
    /// Only this run's events, up to its end.
    run: Option<RunId>,
}

impl Streams {
    async fn wanted(&self, tenant: TenantId, target: Option<Target>) -> Result<Wanted> {
        match target {
            None => Err(Error::invalid("target", "expected a session or a run")),
            Some(Target::Session(text)) => {
                let session = match limits::parse_session_ref(&text)? {
                    SessionRef::Id(id) => id,
                    name @ SessionRef::Name(_) => self.store.get_session(tenant, &name).await?.id,
                };
                Ok(Wanted { session, run: None })
            }
            Some(Target::RunId(text)) => {
                let run: RunId = text.parse()?;
                let session = self.store.get_run(tenant, run).await?.session;
                Ok(Wanted { session, run: Some(run) })
            }
        }
    }

    async fn open(&self, request: Request<SubscribeRequest>) -> Result<Reader> {
        let caller = self.gate.admit(&request, Scope::Read).await?;
        let full = || {
            Error::new(Code::Overloaded, "this server has as many readers as it takes")
                .retry_after(Duration::from_secs(1))
        };
        let seat = Arc::clone(&self.readers).try_acquire_owned().map_err(|_| full())?;
        let body = request.into_inner();
        let wanted = self.wanted(caller.tenant, body.target).await?;
        let cursors = tree_cursors(&body.tree_cursors)?;
        let source = Source {
            store: Arc::clone(&self.store),
            transport: Arc::clone(&self.transport),
            tenant: caller.tenant,
            pace: (self.options.replay_batch, self.options.catch_up),
        };
        let wish = Wish {
            session: wanted.session,
            run: wanted.run,
            after: body.after_cursor,
            deltas: body.deltas,
            tree: body.tree.then_some(cursors),
        };
        Reader::open(source, wish, self.stop.clone(), seat).await
    }
}

/// Where a reader stands in the sessions below.
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

#[async_trait]
impl StreamService for Streams {
    type SubscribeStream = Pin<Box<dyn Stream<Item = Result<SubscribeResponse, Status>> + Send>>;

    async fn subscribe(
        &self,
        request: Request<SubscribeRequest>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let reader = self.open(request).await.map_err(|error| log_and_convert(&error))?;
        let batches = stream::unfold(reader, |mut reader| async move {
            let batch = reader.next().await?;
            Some((batch, reader))
        });
        let responses = batches.flat_map(|batch| {
            let responses: Vec<Result<SubscribeResponse, Status>> = match batch {
                Ok(Said::Events(events)) => events
                    .into_iter()
                    .map(|event| Ok(SubscribeResponse { event: Some(event.into()), delta: None }))
                    .collect(),
                Ok(Said::Deltas(deltas)) => deltas
                    .into_iter()
                    .map(|delta| Ok(SubscribeResponse { event: None, delta: Some(delta.into()) }))
                    .collect(),
                Err(error) => vec![Err(log_and_convert(&error))],
            };
            stream::iter(responses)
        });
        Ok(Response::new(Box::pin(responses)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_below_are_checked() {
        let read = |session: &str, cursor| tree_cursors(&BTreeMap::from([(session.to_owned(), cursor)]));
        let session = SessionId::new();
        assert_eq!(read(&session.to_string(), 7).unwrap(), HashMap::from([(session, 7)]));
        let many = (0..=MAX_SESSIONS).map(|_| (SessionId::new().to_string(), 1)).collect();
        let wrong = [read(&session.to_string(), -1), read("s1", 1), read("", 1), tree_cursors(&many)];
        for answer in wrong {
            let error = answer.unwrap_err();
            assert_eq!((error.code(), error.field()), (Code::InvalidArgument, Some("tree_cursors")));
        }
    }
}
