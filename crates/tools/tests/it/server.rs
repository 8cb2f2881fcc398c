//! Test web server with scripted replies.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::fixture::poll_until;

#[derive(Clone)]
pub(crate) enum Reply {
    /// A complete reply.
    Bytes(Vec<u8>),
    /// A start, then the same letter forever.
    Endless(Vec<u8>),
    /// A start, then silence.
    Stalled(Vec<u8>),
}

/// A complete response.
pub(crate) fn page(status: &str, content_type: &str, body: &str) -> Reply {
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {length}\r\n\r\n");
    Reply::Bytes((head + body).into_bytes())
}

/// Stops when it is dropped.
pub(crate) struct Server {
    address: SocketAddr,
    requests: Arc<AtomicUsize>,
    stop: CancellationToken,
}

impl Server {
    pub(crate) async fn start(answer: impl Fn(&str) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (requests, stop) = (Arc::new(AtomicUsize::new(0)), CancellationToken::new());
        let (counted, stopped, answer) = (Arc::clone(&requests), stop.clone(), Arc::new(answer));
        let tracker = TaskTracker::new();
        let tasks = tracker.clone();
        tracker.spawn(stop.clone().run_until_cancelled_owned(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (answer, counted) = (Arc::clone(&answer), Arc::clone(&counted));
                let serve_connection = async move {
                    // A client may disconnect at any time.
                    drop(serve_connection(stream, &*answer, &counted).await);
                };
                tasks.spawn(stopped.clone().run_until_cancelled_owned(serve_connection));
            }
        }));
        Self { address, requests, stop }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    /// Waits for the first request.
    pub(crate) async fn wait_for_request(&self) {
        poll_until(|| (self.requests() > 0).then_some(())).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn serve_connection(
    mut stream: TcpStream,
    answer: &(dyn Fn(&str) -> Reply + Send + Sync),
    requests: &AtomicUsize,
) -> std::io::Result<()> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        if stream.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    requests.fetch_add(1, Ordering::SeqCst);
    match answer(&String::from_utf8_lossy(&request)) {
        Reply::Bytes(bytes) => stream.write_all(&bytes).await?,
        Reply::Endless(start) => {
            stream.write_all(&start).await?;
            loop {
                stream.write_all(&[b'a'; 16 * 1024]).await?;
            }
        }
        Reply::Stalled(start) => {
            stream.write_all(&start).await?;
            std::future::pending::<()>().await;
        }
    }
    stream.shutdown().await
}
