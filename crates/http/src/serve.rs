//! Serves gRPC and HTTP on one port.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, extract::DefaultBodyLimit};
use futures::future::Either;
use hyper::{Request, body::Incoming, header::CONTENT_TYPE, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto::Builder, graceful::GracefulShutdown},
};
use remuda_domain::{Code, Error, error::Result, limits::MAX_MESSAGE_BYTES};
use remuda_grpc::GrpcRouter;
use remuda_tls::{Protocol, ServerTls, Stream};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::Service as _;
use tracing::Instrument as _;

use crate::write_timeout::WriteTimeout;

/// Timeout for the headers of a request: silent connections would otherwise stay open for ever.
const HEADER_TIMEOUT: Duration = Duration::from_secs(15);
/// Read buffer of an HTTP/1 connection, and so the maximum size of its headers.
const BUFFER_BYTES: usize = 64 * 1024;
const MAX_HEADER_LIST: u32 = 16 * 1024;
const MAX_HEADERS: usize = 100;
/// A peer that reads nothing for this long is disconnected.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause between peeks at an incomplete preface.
const PEEK_PAUSE: Duration = Duration::from_millis(5);
/// Pause after a failed accept (such as no file descriptors left), to avoid a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Connection settings of a server.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// How often an idle connection is probed. A connection is closed after a missed reply.
    pub keepalive: Duration,
    /// Concurrent requests per connection.
    pub max_concurrent_streams: u32,
    /// Concurrent connections; more wait to be accepted.
    pub max_connections: usize,
    /// How long open calls may go on after the stop signal.
    pub drain: Duration,
    /// `None`: the port speaks plain HTTP.
    pub tls: Option<ServerTls>,
}

/// Binds a port. Call it before any other work, so that a port in use is reported first.
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

/// Serves until `stop`. Then it sends `GOAWAY`, or `Connection: close`, and lets open calls finish for a while.
pub async fn serve(
    listener: TcpListener,
    grpc: GrpcRouter,
    http: Router,
    options: ServeOptions,
    stop: CancellationToken,
) {
    let http = http.layer(DefaultBodyLimit::max(MAX_MESSAGE_BYTES));
    let builder = Arc::new(Builders::new(&options));
    let (open, connections) = (GracefulShutdown::new(), TaskTracker::new());
    let permits = Arc::new(Semaphore::new(options.max_connections));
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = accept(&listener, &permits) => accepted,
        };
        let (stream, peer, permit) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "accepting a connection failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        prepare(&stream, &options);
        let (grpc, http) = (grpc.clone(), http.clone());
        let service = service_fn(move |mut request: Request<Incoming>| {
            let span = remuda_grpc::request_span(&mut request);
            let gate = grpc.gate();
            let state = gate.begin(peer.ip());
            let response = match is_grpc(&request) {
                true => Either::Left(grpc.call(request)),
                // A router is always ready.
                false => Either::Right(http.clone().call(request.map(|body| gate.meter(body)))),
            };
            state.scope(response).instrument(span)
        });
        let (builder, watcher, stop) = (Arc::clone(&builder), open.watcher(), stop.clone());
        let tls = options.tls.clone();
        connections.spawn(async move {
            let opened = timeout(HEADER_TIMEOUT, builder.open(tls.as_ref(), stream));
            let Some(Ok(Ok((builder, stream)))) = stop.run_until_cancelled(opened).await else { return };
            let io = TokioIo::new(WriteTimeout::new(stream, STALL_TIMEOUT));
            let connection = watcher.watch(builder.serve_connection(io, service).into_owned());
            // Peers may break connections at any time: not worth a warning.
            if let Err(error) = connection.await {
                tracing::trace!(%error, "connection closed with an error");
            }
            drop(permit);
        });
    }
    drop(listener);
    // A half-open connection can block the graceful shutdown for ever.
    drop(timeout(options.drain, open.shutdown()).await);
}

async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> io::Result<(TcpStream, SocketAddr, tokio::sync::OwnedSemaphorePermit)> {
    let permit = Arc::clone(permits).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    Ok((stream, peer, permit))
}

/// One connection builder for each version of HTTP.
///
/// The library can detect the version by itself, but then keeps a second read buffer for as long as the connection lasts:
/// with ten thousand readers that is 80 MiB.
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
            .header_read_timeout(HEADER_TIMEOUT)
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

    /// Completes the handshake, and finds the builder for the HTTP version of the peer. The caller limits the time.
    async fn open(
        &self,
        tls: Option<&ServerTls>,
        stream: TcpStream,
    ) -> io::Result<(&Builder<TokioExecutor>, Stream)> {
        let (stream, protocol) = remuda_tls::accept(tls, stream).await?;
        let is_http2 = match (&stream, protocol) {
            (_, Some(protocol)) => protocol == Protocol::Http2,
            (Stream::Plain(stream), None) => speaks_http2(stream).await?,
            (Stream::Tls(_), None) => false,
        };
        Ok((if is_http2 { &self.http2 } else { &self.http1 }, stream))
    }
}

/// Peeks at the start of a connection for the HTTP/2 preface. No method of HTTP/1 starts with the same bytes.
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
        // Some of the four bytes are missing. The socket stays readable, so only a pause avoids a busy loop.
        tokio::time::sleep(PEEK_PAUSE).await;
    }
}

/// Sets socket options: responses are sent without delay, and vanished peers are detected.
fn prepare(stream: &TcpStream, options: &ServeOptions) {
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new().with_time(options.keepalive).with_interval(options.keepalive);
    let outcome = stream
        .set_nodelay(true)
        .and_then(|()| socket.set_tcp_keepalive(&keepalive))
        .and_then(|()| socket.set_tcp_user_timeout(Some(STALL_TIMEOUT)));
    if let Err(error) = outcome {
        tracing::debug!(%error, "setting socket options failed");
    }
}

fn is_grpc(request: &Request<Incoming>) -> bool {
    let kind = request.headers().get(CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documented_limits_are_the_enforced_ones() {
        let docs = include_str!("../../../docs/http.md");
        let (head, list) = (BUFFER_BYTES / 1024, MAX_HEADER_LIST / 1024);
        let size = format!("{MAX_HEADERS} headers and {head} KiB (HTTP/2: {list} KiB) for a request head");
        let time = format!("must arrive within {} s", HEADER_TIMEOUT.as_secs());
        assert!(docs.contains(&size) && docs.contains(&time), "{size}, {time}");
    }
}
