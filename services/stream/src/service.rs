//! `StreamService` over gRPC.

use std::{pin::Pin, sync::Arc, time::Duration};

use futures::{Stream, StreamExt as _, stream};
use remuda_domain::{
    Code, Error, Event, RunId, SessionId, TenantId, error::Result, identity::Scope, limits,
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
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, async_trait, service::RoutesBuilder};

use crate::follow::{Followed, Follower};

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
        let follower = Follower::start(
            Arc::clone(&self.store),
            Arc::clone(&self.transport),
            caller.tenant,
            wanted.session,
            body.after_cursor,
            (self.options.replay_batch, self.options.catch_up),
        )
        .await?;
        Ok(Reader {
            store: Arc::clone(&self.store),
            tenant: caller.tenant,
            run: wanted.run,
            follower,
            stop: self.stop.clone(),
            ended: false,
            _seat: seat,
        })
    }
}

/// One open stream.
struct Reader {
    store: Arc<dyn Store>,
    tenant: TenantId,
    run: Option<RunId>,
    follower: Follower,
    stop: CancellationToken,
    ended: bool,
    /// Frees the reader's place when the stream is dropped.
    _seat: OwnedSemaphorePermit,
}

impl Reader {
    /// The next events to send; `None` at the end.
    async fn next(&mut self) -> Option<Result<Vec<Event>>> {
        while !self.ended {
            let followed = tokio::select! {
                () = self.stop.cancelled() => {
                    self.ended = true;
                    return Some(Err(Error::unavailable("the server shuts down; reconnect with your last cursor")));
                }
                followed = self.follower.next() => followed,
            };
            let outcome = match followed {
                Ok(Followed::Events(events)) => self.select(events),
                Ok(Followed::CaughtUp) => self.end_if_finished().await.map(|()| Vec::new()),
                Err(error) => Err(error),
            };
            match outcome {
                Ok(events) if events.is_empty() => {}
                Ok(events) => return Some(Ok(events)),
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }

    /// Keeps what the reader wants; a run's terminal event is its last.
    fn select(&mut self, events: Vec<Event>) -> Result<Vec<Event>> {
        let Some(run) = self.run else {
            return Ok(events);
        };
        let wanted: Vec<Event> = events.into_iter().filter(|event| event.run == Some(run)).collect();
        self.ended = wanted.iter().any(|event| event.body.terminal_state().is_some());
        Ok(wanted)
    }

    /// A reader that starts after the terminal event would wait for ever.
    async fn end_if_finished(&mut self) -> Result<()> {
        if let Some(run) = self.run {
            let seen_all = self.store.get_run(self.tenant, run).await?.state.is_terminal();
            // The end may have come after the replay; then its event is still on its way.
            self.ended = seen_all && !self.follower.has_more().await?;
        }
        Ok(())
    }
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
                Ok(events) => events
                    .into_iter()
                    .map(|event| Ok(SubscribeResponse { event: Some(event.into()) }))
                    .collect(),
                Err(error) => vec![Err(log_and_convert(&error))],
            };
            stream::iter(responses)
        });
        Ok(Response::new(Box::pin(responses)))
    }
}
