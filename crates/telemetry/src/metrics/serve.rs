//! Serves `GET /metrics` for Prometheus.

use std::{convert::Infallible, io, sync::Arc, time::Duration};

use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{ALLOW, CONTENT_TYPE},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus::TEXT_FORMAT;
use remuda_tls::ServerTls;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::Exporter;

/// Limit of concurrent connections; further ones wait.
const CONNECTIONS: usize = 16;
/// Limit of the total time of a connection. A scraper opens a new one for each scrape.
const CONNECTION_LIMIT: Duration = Duration::from_secs(10);
const HEADER_LIMIT: Duration = Duration::from_secs(5);
/// The pause after a failed accept, usually for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

type TextResponse = Response<Full<Bytes>>;

impl Exporter {
    /// Serves until `stop`, with TLS if there is a certificate.
    pub async fn serve(self, listener: TcpListener, tls: Option<ServerTls>, stop: CancellationToken) {
        let permits = Arc::new(Semaphore::new(CONNECTIONS));
        let connections = TaskTracker::new();
        loop {
            let accepted = async {
                let permit = Arc::clone(&permits).acquire_owned().await;
                (permit, listener.accept().await)
            };
            let (permit, accepted) = tokio::select! {
                () = stop.cancelled() => break,
                accepted = accepted => accepted,
            };
            match accepted {
                Ok((stream, _)) => {
                    let (exporter, tls) = (self.clone(), tls.clone());
                    connections.spawn(async move {
                        exporter.serve_connection(stream, tls).await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "accepting a metrics connection failed");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        connections.close();
        connections.wait().await;
    }

    async fn serve_connection(&self, stream: TcpStream, tls: Option<ServerTls>) {
        let service = service_fn(|request: Request<Incoming>| {
            let response = self.response(request.method(), request.uri().path());
            async move { Ok::<_, Infallible>(response) }
        });
        let connection = async {
            // A scraper that offers HTTP/2 gets HTTP/1.1.
            let (stream, _) = remuda_tls::accept_http1(tls.as_ref(), stream).await?;
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_LIMIT)
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service);
            connection.await.map_err(io::Error::other)
        };
        match timeout(CONNECTION_LIMIT, connection).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "metrics connection failed"),
            Err(_) => tracing::debug!("metrics connection timed out"),
        }
    }

    fn response(&self, method: &Method, path: &str) -> TextResponse {
        match (path, method) {
            ("/metrics", &Method::GET | &Method::HEAD) => match self.text() {
                Ok(text) => text_response(StatusCode::OK, TEXT_FORMAT, text),
                Err(error) => {
                    tracing::warn!(%error, "encoding metrics failed");
                    plain(StatusCode::INTERNAL_SERVER_ERROR, "metrics could not be encoded\n")
                }
            },
            ("/metrics", _) => {
                let mut refusal = plain(StatusCode::METHOD_NOT_ALLOWED, "expected GET\n");
                refusal.headers_mut().insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
                refusal
            }
            _ => plain(StatusCode::NOT_FOUND, "metrics are at /metrics\n"),
        }
    }
}

fn plain(status: StatusCode, text: &str) -> TextResponse {
    text_response(status, "text/plain; charset=utf-8", text.to_owned())
}

fn text_response(status: StatusCode, content_type: &'static str, text: String) -> TextResponse {
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(content_type));
    response
}
