//! `StreamService` over gRPC.

use std::{pin::Pin, sync::Arc, time::Duration};

use futures::{Stream, StreamExt as _, stream};
use remuda_domain::{
    Code, Error, RunId, SessionId, TenantId, error::Result, identity::Scope, limits, session::SessionRef,
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
    deltas::Deltas,
    follow::Follower,
    reader::{Reader, Said},
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
        // Before the events: a message whose beginning is seen is then heard from there on.
        let deltas = if body.deltas {
            let transport = Arc::clone(&self.transport);
            Some(Deltas::open(transport, caller.tenant, wanted.session, wanted.run).await)
        } else {
            None
        };
        let follower = Follower::start(
            Arc::clone(&self.store),
            Arc::clone(&self.transport),
            caller.tenant,
            wanted.session,
            body.after_cursor,
            (self.options.replay_batch, self.options.catch_up),
        )
        .await?;
        let stop = self.stop.clone();
        Ok(Reader::new(Arc::clone(&self.store), caller.tenant, wanted.run, (follower, deltas), stop, seat))
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
