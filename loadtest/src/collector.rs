//! A gRPC server that receives OTLP exports for a handler.

use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use tonic::transport::Server;

use crate::raw_grpc::{RawHandler, RawService};

/// A running collector. It stops when it is dropped.
pub(crate) struct Collector {
    pub(crate) endpoint: String,
    _server: AbortOnDropHandle<Result<(), tonic::transport::Error>>,
}

impl Collector {
    pub(crate) async fn start(answers: impl RawHandler) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let server = Server::builder()
            .add_service(RawService(answers))
            .serve_with_incoming(TcpListenerStream::new(listener));
        let server = AbortOnDropHandle::new(TaskTracker::new().spawn(server));
        Ok(Self { endpoint, _server: server })
    }
}
