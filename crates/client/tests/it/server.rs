//! A scripted server on a free port. Dropping it kills its connections, as `kill -9` would.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use remuda_client::{Client, ClientOptions};
use remuda_proto::v1::{
    self,
    meta_service_server::{MetaService, MetaServiceServer},
    run_service_server::{RunService, RunServiceServer},
    stream_service_server::{StreamService, StreamServiceServer},
};
use tokio::{
    net::TcpListener,
    runtime::{Builder, Runtime},
};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, transport::Server as Tonic};

/// What a subscription does after its events.
#[derive(Clone, Debug)]
pub(crate) enum AfterEvents {
    Fail(Status),
    End,
    /// Stays open and silent.
    Hang,
}

/// What the server does, and the requests it received.
#[derive(Default)]
pub(crate) struct Script {
    pub subscriptions: VecDeque<(Vec<v1::Event>, AfterEvents)>,
    /// Sent before the events of every subscription that requests them.
    pub deltas: Vec<v1::Delta>,
    /// Error responses to `SubmitRun`; accepted when none is left.
    pub submit_errors: VecDeque<Status>,
    pub run_state: v1::RunState,
    pub stream_endpoint: String,
    pub received: Received,
}

#[derive(Clone, Default)]
pub(crate) struct Received {
    pub cursors: Vec<i64>,
    /// Cursors of descendant sessions; `None` if they were not requested.
    pub tree_cursors: Vec<Option<Vec<(String, i64)>>>,
    pub submits: usize,
    pub waits: usize,
    pub infos: usize,
    pub authorization: Option<String>,
}

#[derive(Clone, Default)]
struct Service(Arc<Mutex<Script>>);

pub(crate) struct Server {
    service: Service,
    pub address: SocketAddr,
    runtime: Option<Runtime>,
}

impl Server {
    pub(crate) fn start(script: Script) -> Self {
        Self::start_at(Service(Arc::new(Mutex::new(script))), "127.0.0.1:0".parse().unwrap())
    }

    fn start_at(service: Service, address: SocketAddr) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let served = service.clone();
        runtime.spawn(async move {
            let listener = TcpListener::bind(address).await.unwrap();
            sender.send(listener.local_addr().unwrap()).unwrap();
            Tonic::builder()
                .add_service(StreamServiceServer::new(served.clone()))
                .add_service(RunServiceServer::new(served.clone()))
                .add_service(MetaServiceServer::new(served))
                .serve_with_incoming(TcpListenerStream::new(listener))
                .await
                .unwrap();
        });
        let address = receiver.recv_timeout(Duration::from_secs(10)).unwrap();
        Self { service, address, runtime: Some(runtime) }
    }

    /// Restarts on the same port with the same state.
    pub(crate) fn restart(mut self) -> Self {
        let (service, address) = (self.service.clone(), self.address);
        self.kill();
        Self::start_at(service, address)
    }

    pub(crate) fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // A runtime must not be awaited inside another one; without waiting the port could still be open.
            std::thread::spawn(move || runtime.shutdown_timeout(Duration::from_secs(10))).join().unwrap();
        }
    }

    pub(crate) fn received(&self) -> Received {
        self.service.0.lock().unwrap().received.clone()
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.options()).unwrap()
    }

    pub(crate) fn options(&self) -> ClientOptions {
        ClientOptions { endpoint: self.url(), give_up_after: Duration::from_secs(20), ..Default::default() }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

#[tonic::async_trait]
impl StreamService for Service {
    type SubscribeStream = BoxStream<'static, Result<v1::SubscribeResponse, Status>>;

    async fn subscribe(
        &self,
        request: Request<v1::SubscribeRequest>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let mut script = self.0.lock().unwrap();
        script.received.authorization =
            request.metadata().get("authorization").map(|value| value.to_str().unwrap().to_owned());
        script.received.cursors.push(request.get_ref().after_cursor);
        let descendants = request.get_ref().tree_cursors.clone().into_iter().collect();
        script.received.tree_cursors.push(request.get_ref().tree.then_some(descendants));
        let (events, then) = script.subscriptions.pop_front().unwrap_or((Vec::new(), AfterEvents::Hang));
        let deltas = if request.get_ref().deltas { script.deltas.clone() } else { Vec::new() };
        let deltas =
            deltas.into_iter().map(|delta| v1::SubscribeResponse { event: None, delta: Some(delta) });
        let events =
            events.into_iter().map(|event| v1::SubscribeResponse { event: Some(event), delta: None });
        let events = stream::iter(deltas.chain(events).map(Ok).collect::<Vec<_>>());
        Ok(Response::new(match then {
            AfterEvents::Fail(status) => events.chain(stream::iter([Err(status)])).boxed(),
            AfterEvents::End => events.boxed(),
            AfterEvents::Hang => events.chain(stream::pending()).boxed(),
        }))
    }
}

#[tonic::async_trait]
impl MetaService for Service {
    async fn get_server_info(
        &self,
        _: Request<v1::GetServerInfoRequest>,
    ) -> Result<Response<v1::GetServerInfoResponse>, Status> {
        let mut script = self.0.lock().unwrap();
        script.received.infos += 1;
        let stream_endpoint = script.stream_endpoint.clone();
        Ok(Response::new(v1::GetServerInfoResponse { stream_endpoint, ..Default::default() }))
    }
}

impl Service {
    fn run(&self) -> v1::Run {
        let state = self.0.lock().unwrap().run_state.into();
        v1::Run { id: "run_1".into(), state, ..Default::default() }
    }
}

#[tonic::async_trait]
impl RunService for Service {
    async fn submit_run(
        &self,
        _: Request<v1::SubmitRunRequest>,
    ) -> Result<Response<v1::SubmitRunResponse>, Status> {
        let mut script = self.0.lock().unwrap();
        script.received.submits += 1;
        if let Some(status) = script.submit_errors.pop_front() {
            return Err(status);
        }
        drop(script);
        Ok(Response::new(v1::SubmitRunResponse { run: Some(self.run()), ..Default::default() }))
    }

    async fn get_run(&self, _: Request<v1::GetRunRequest>) -> Result<Response<v1::GetRunResponse>, Status> {
        Ok(Response::new(v1::GetRunResponse { run: Some(self.run()) }))
    }

    async fn wait_run(
        &self,
        _: Request<v1::WaitRunRequest>,
    ) -> Result<Response<v1::WaitRunResponse>, Status> {
        let waits = {
            let mut script = self.0.lock().unwrap();
            script.received.waits += 1;
            script.received.waits
        };
        match waits {
            1 => std::future::pending().await,
            2 => Ok(Response::new(v1::WaitRunResponse { run: Some(self.run()), finished: false })),
            _ => Ok(Response::new(v1::WaitRunResponse { run: Some(self.run()), finished: true })),
        }
    }

    async fn list_runs(
        &self,
        _: Request<v1::ListRunsRequest>,
    ) -> Result<Response<v1::ListRunsResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn list_steps(
        &self,
        _: Request<v1::ListStepsRequest>,
    ) -> Result<Response<v1::ListStepsResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn get_content(
        &self,
        _: Request<v1::GetContentRequest>,
    ) -> Result<Response<v1::GetContentResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn cancel_run(
        &self,
        _: Request<v1::CancelRunRequest>,
    ) -> Result<Response<v1::CancelRunResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn set_budget(
        &self,
        _: Request<v1::SetBudgetRequest>,
    ) -> Result<Response<v1::SetBudgetResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn get_run_trace(
        &self,
        _: Request<v1::GetRunTraceRequest>,
    ) -> Result<Response<v1::GetRunTraceResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn explain_run(
        &self,
        _: Request<v1::ExplainRunRequest>,
    ) -> Result<Response<v1::ExplainRunResponse>, Status> {
        Err(Status::unimplemented(""))
    }
}

pub(crate) fn event(cursor: i64, name: &str) -> v1::Event {
    v1::Event { cursor, run_id: "run_1".into(), r#type: name.into(), ..Default::default() }
}

/// Waits until `condition` holds.
pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..1000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what} did not happen within 10 s");
}
