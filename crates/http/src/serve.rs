//! One port for gRPC and HTTP.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, extract::DefaultBodyLimit};
use futures::future::Either;
use hyper::{Request, body::Incoming, header::CONTENT_TYPE, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto::Builder, graceful::GracefulShutdown},
};
use remuda_domain::{Code, Error, error::Result, limits::MAX_MESSAGE_BYTES};
use remuda_grpc::Front;
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::Service as _;
use tracing::Instrument as _;

use crate::stall::Unstalled;

/// The headers of a request must be there in this time: else connections that say nothing would stay for ever.
const HEADERS_WITHIN: Duration = Duration::from_secs(15);
/// What HTTP/1 may buffer of one connection, and so the most that its headers can be.
const BUFFER_BYTES: usize = 64 * 1024;
const MAX_HEADER_LIST: u32 = 16 * 1024;
const MAX_HEADERS: usize = 100;
/// A peer that takes nothing for so long is gone, or means no good.
const STALLED_AFTER: Duration = Duration::from_secs(60);
/// Between looks at a beginning that came in pieces.
const PEEK_PAUSE: Duration = Duration::from_millis(5);
/// A failing accept (no file descriptors left) must not become a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How a server behaves on the wire.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// How often an idle connection is probed; a dead one is closed after a missed answer.
    pub keepalive: Duration,
    /// Requests at once on one connection.
    pub max_concurrent_streams: u32,
    /// Connections at once; more wait to be accepted.
    pub max_connections: usize,
    /// How long open calls may go on after the stop signal.
    pub drain: Duration,
}

/// Binds a port. Done before any other work, so that a port in use is the first thing one hears of.
pub async fn bind(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        let advice = match error.kind() {
            io::ErrorKind::AddrInUse => "is another remuda running? choose another address with --listen",
            io::ErrorKind::PermissionDenied => "ports below 1024 need privileges: choose a higher one",
            _ => "check the address",
        };
        Error::new(Code::Unavailable, format!("cannot listen on {address}: {advice}"))
            .at("listen")
            .with_source(error)
    })
}

/// Serves until `stop`, then tells clients to go elsewhere (`GOAWAY`, or `Connection: close`) and lets open calls finish for a while.
pub async fn serve(
    listener: TcpListener,
    grpc: Front,
    http: Router,
    options: ServeOptions,
    stop: CancellationToken,
) {
    let http = http.layer(DefaultBodyLimit::max(MAX_MESSAGE_BYTES));
    let builder = Arc::new(Builders::new(&options));
    let (open, connections) = (GracefulShutdown::new(), TaskTracker::new());
    let room = Arc::new(Semaphore::new(options.max_connections));
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = accept(&listener, &room) => accepted,
        };
        let (stream, place) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        prepare(&stream, &options);
        let (grpc, http) = (grpc.clone(), http.clone());
        let service = service_fn(move |mut request: Request<Incoming>| {
            let span = remuda_grpc::of_request(&mut request);
            let answer = match is_grpc(&request) {
                true => Either::Left(grpc.answer(request)),
                // A router is always ready.
                false => Either::Right(http.clone().call(request)),
            };
            answer.instrument(span)
        });
        let (builder, watcher, stop) = (Arc::clone(&builder), open.watcher(), stop.clone());
        connections.spawn(async move {
            let Some(builder) = stop.run_until_cancelled(builder.fitting(&stream)).await.flatten() else {
                return;
            };
            let io = TokioIo::new(Unstalled::new(stream, STALLED_AFTER));
            let connection = watcher.watch(builder.serve_connection(io, service).into_owned());
            // How a connection breaks is the other end's business.
            if let Err(error) = connection.await {
                tracing::trace!(%error, "a connection broke");
            }
            drop(place);
        });
    }
    drop(listener);
    // A half-open connection can keep the graceful end waiting for ever.
    drop(timeout(options.drain, open.shutdown()).await);
}

async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> io::Result<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let place = Arc::clone(room).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    Ok((stream, place))
}

/// One for each version of HTTP.
///
/// The library can tell the versions apart by itself, but then reads the beginning of a request apart from its rest, and keeps
/// twice the memory for as long as the connection lasts: with ten thousand readers that is 80 MiB.
struct Builders {
    http1: Builder<TokioExecutor>,
    http2: Builder<TokioExecutor>,
}

impl Builders {
    fn new(options: &ServeOptions) -> Self {
        let (mut http1, mut http2) = (Builder::new(TokioExecutor::new()), Builder::new(TokioExecutor::new()));
        http1
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADERS_WITHIN)
            .max_buf_size(BUFFER_BYTES)
            .max_headers(MAX_HEADERS);
        http2
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(options.keepalive)
            .keep_alive_timeout(Duration::from_secs(10))
            .max_concurrent_streams(options.max_concurrent_streams)
            .max_header_list_size(MAX_HEADER_LIST);
        Self { http1: http1.http1_only(), http2: http2.http2_only() }
    }

    /// The one for what the peer begins to say; `None` if it says nothing.
    async fn fitting(&self, stream: &TcpStream) -> Option<&Builder<TokioExecutor>> {
        let looked = timeout(HEADERS_WITHIN, speaks_http2(stream)).await.ok()?;
        Some(if looked.ok()? { &self.http2 } else { &self.http1 })
    }
}

/// Looks at the beginning of a connection without taking anything away. No method of HTTP/1 begins like the preface of HTTP/2.
async fn speaks_http2(stream: &TcpStream) -> io::Result<bool> {
    const PREFACE: &[u8] = b"PRI ";
    let mut beginning = [0; PREFACE.len()];
    loop {
        let seen = stream.peek(&mut beginning).await?;
        if seen == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if seen == PREFACE.len() || !PREFACE.starts_with(&beginning[..seen]) {
            return Ok(beginning[..seen] == *PREFACE);
        }
        // The rest of four bytes is on its way; what was seen stays readable, so there is nothing to wait for but time.
        tokio::time::sleep(PEEK_PAUSE).await;
    }
}

/// Answers leave at once, and a peer that vanished is noticed.
fn prepare(stream: &TcpStream, options: &ServeOptions) {
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new().with_time(options.keepalive).with_interval(options.keepalive);
    let done = stream
        .set_nodelay(true)
        .and_then(|()| socket.set_tcp_keepalive(&keepalive))
        .and_then(|()| socket.set_tcp_user_timeout(Some(STALLED_AFTER)));
    if let Err(error) = done {
        tracing::debug!(%error, "a connection could not be prepared");
    }
}

fn is_grpc(request: &Request<Incoming>) -> bool {
    let kind = request.headers().get(CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}
