//! `GET /metrics`.

use std::{convert::Infallible, sync::Arc, time::Duration};

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
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::Exporter;

/// Scrapers are few: whoever opens more connections waits.
const CONNECTIONS: usize = 16;
/// How long one connection may take in all. A scraper comes back with a new one.
const CONNECTION_LIMIT: Duration = Duration::from_secs(10);
const HEADER_LIMIT: Duration = Duration::from_secs(5);
/// When no connection can be accepted, files are short; they will not be a moment later.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

type Answer = Response<Full<Bytes>>;

impl Exporter {
    /// Answers until `stop`.
    pub async fn serve(self, listener: TcpListener, stop: CancellationToken) {
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        let connections = TaskTracker::new();
        loop {
            let accepted = async {
                let place = Arc::clone(&places).acquire_owned().await;
                (place, listener.accept().await)
            };
            let (place, accepted) = tokio::select! {
                () = stop.cancelled() => break,
                accepted = accepted => accepted,
            };
            match accepted {
                Ok((stream, _)) => {
                    let exporter = self.clone();
                    connections.spawn(async move {
                        exporter.answer(stream).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection to the metrics could not be accepted");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        connections.close();
        connections.wait().await;
    }

    async fn answer(&self, stream: TcpStream) {
        let service = service_fn(|request: Request<Incoming>| {
            let answer = self.response(request.method(), request.uri().path());
            async move { Ok::<_, Infallible>(answer) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_LIMIT)
            .keep_alive(false)
            .serve_connection(TokioIo::new(stream), service);
        match timeout(CONNECTION_LIMIT, connection).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "a connection to the metrics broke"),
            Err(_) => tracing::debug!("a connection to the metrics took too long"),
        }
    }

    fn response(&self, method: &Method, path: &str) -> Answer {
        match (path, method) {
            ("/metrics", &Method::GET | &Method::HEAD) => match self.text() {
                Ok(text) => answer(StatusCode::OK, TEXT_FORMAT, text),
                Err(error) => {
                    tracing::warn!(%error, "the metrics could not be written");
                    plain(StatusCode::INTERNAL_SERVER_ERROR, "the metrics could not be written\n")
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

fn plain(status: StatusCode, text: &str) -> Answer {
    answer(status, "text/plain; charset=utf-8", text.to_owned())
}

fn answer(status: StatusCode, content_type: &'static str, text: String) -> Answer {
    let mut answer = Response::new(Full::from(text));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(content_type));
    answer
}
