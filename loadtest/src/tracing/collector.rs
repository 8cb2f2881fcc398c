//! A collector that takes every trace and looks at none, so that nothing but the sending is measured.

use std::{
    net::TcpListener as StdListener,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use tonic::transport::Server;

use crate::raw_grpc::{Answers, RawService};

pub(super) struct Collector {
    pub(super) endpoint: String,
    sink: Sink,
    _server: AbortOnDropHandle<Result<(), tonic::transport::Error>>,
}

impl Collector {
    pub(super) async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let sink = Sink::default();
        let service = RawService(sink.clone());
        let server =
            Server::builder().add_service(service).serve_with_incoming(TcpListenerStream::new(listener));
        let server = AbortOnDropHandle::new(TaskTracker::new().spawn(server));
        Ok(Self { endpoint, sink, _server: server })
    }

    pub(super) fn requests(&self) -> u64 {
        self.sink.requests.load(Ordering::Relaxed)
    }
}

/// An address where nobody listens.
pub(super) fn nobody() -> anyhow::Result<String> {
    let address = StdListener::bind("127.0.0.1:0")?.local_addr()?;
    Ok(format!("http://{address}"))
}

#[derive(Clone, Debug, Default)]
struct Sink {
    requests: Arc<AtomicU64>,
}

impl Answers for Sink {
    const NAME: &'static str = "opentelemetry.proto.collector.trace.v1.TraceService";

    /// An answer without fields has no bytes.
    fn answer(&self, _: Bytes) -> Bytes {
        self.requests.fetch_add(1, Ordering::Relaxed);
        Bytes::new()
    }
}
