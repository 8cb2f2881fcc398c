//! A collector that takes every trace and looks at none, so that nothing but the sending is measured.

use std::{
    convert::Infallible,
    net::TcpListener as StdListener,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Buf as _;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use tonic::{
    Request, Response, Status,
    body::Body,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::{BoxFuture, Service, http},
    server::{Grpc, NamedService, UnaryService},
    transport::Server,
};

pub(super) struct Collector {
    pub(super) endpoint: String,
    requests: Arc<AtomicU64>,
    _server: AbortOnDropHandle<Result<(), tonic::transport::Error>>,
}

impl Collector {
    pub(super) async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let requests = Arc::new(AtomicU64::new(0));
        let sink = Sink { requests: Arc::clone(&requests) };
        let server =
            Server::builder().add_service(sink).serve_with_incoming(TcpListenerStream::new(listener));
        let server = AbortOnDropHandle::new(TaskTracker::new().spawn(server));
        Ok(Self { endpoint, requests, _server: server })
    }

    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }
}

/// An address where nobody listens.
pub(super) fn nobody() -> anyhow::Result<String> {
    let address = StdListener::bind("127.0.0.1:0")?.local_addr()?;
    Ok(format!("http://{address}"))
}

#[derive(Clone, Debug)]
struct Sink {
    requests: Arc<AtomicU64>,
}

impl NamedService for Sink {
    const NAME: &'static str = "opentelemetry.proto.collector.trace.v1.TraceService";
}

impl Service<http::Request<Body>> for Sink {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        self.requests.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            let limits = (Some(usize::MAX), None);
            let mut grpc = Grpc::new(Unread).apply_max_message_size_config(limits.0, limits.1);
            Ok(grpc.unary(Taken, request).await)
        })
    }
}

struct Taken;

impl UnaryService<()> for Taken {
    type Response = ();
    type Future = std::future::Ready<Result<Response<()>, Status>>;

    fn call(&mut self, _: Request<()>) -> Self::Future {
        std::future::ready(Ok(Response::new(())))
    }
}

/// Messages whose bytes nobody looks at; an answer without fields has none.
struct Unread;

impl Codec for Unread {
    type Encode = ();
    type Decode = ();
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Unread {
    type Item = ();
    type Error = Status;

    fn encode(&mut self, (): (), _: &mut EncodeBuf<'_>) -> Result<(), Status> {
        Ok(())
    }
}

impl Decoder for Unread {
    type Item = ();
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<()>, Status> {
        bytes.advance(bytes.remaining());
        Ok(Some(()))
    }
}
