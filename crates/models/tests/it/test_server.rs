//! An HTTP server that replies with arbitrary bytes, cut at arbitrary positions.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// One reply.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    head: String,
    /// Each is one HTTP chunk, so the client receives them separately.
    chunks: Vec<Vec<u8>>,
    end: End,
}

#[derive(Clone, Debug)]
enum End {
    /// Properly.
    Proper,
    /// The connection breaks.
    Abrupt,
    /// Nothing more is sent, until the client disconnects.
    Stalled,
    /// Repeats the last chunk forever.
    Endless,
    /// Does not even send a status.
    Silent,
}

impl Reply {
    pub(crate) fn new(status: &str, content_type: &str, body: &str) -> Self {
        let head = format!("HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\n");
        Self { head, chunks: vec![body.as_bytes().to_vec()], end: End::Proper }
    }

    pub(crate) fn stream(body: &str) -> Self {
        Self::new("200 OK", "text/event-stream", body)
    }

    pub(crate) fn json(status: &str, body: &Value) -> Self {
        Self::new(status, "application/json", &body.to_string())
    }

    pub(crate) fn silent() -> Self {
        Self { end: End::Silent, ..Self::stream("") }
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.head.push_str(&format!("{name}: {value}\r\n"));
        self
    }

    /// The same bytes in chunks of a size.
    pub(crate) fn cut(mut self, size: usize) -> Self {
        self.chunks = self.chunks.concat().chunks(size).map(<[u8]>::to_vec).collect();
        self
    }

    pub(crate) fn breaks(self) -> Self {
        Self { end: End::Abrupt, ..self }
    }

    pub(crate) fn stalls(self) -> Self {
        Self { end: End::Stalled, ..self }
    }

    pub(crate) fn endless(self) -> Self {
        Self { end: End::Endless, ..self }
    }
}

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedRequest {
    /// The first line and the headers, lower case.
    pub(crate) head: String,
    pub(crate) body: Value,
}

/// Sends one reply after the other, and repeats the last one. Stops when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    requests: Arc<Mutex<Vec<ReceivedRequest>>>,
    disconnects: watch::Receiver<usize>,
    connections: Arc<AtomicUsize>,
    stop: CancellationToken,
}

struct ReplyScript {
    replies: Vec<Reply>,
    next: AtomicUsize,
    requests: Arc<Mutex<Vec<ReceivedRequest>>>,
    disconnects: watch::Sender<usize>,
}

impl Server {
    pub(crate) async fn start(replies: impl Into<Vec<Reply>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (requests, stop) = (Arc::default(), CancellationToken::new());
        let connections = Arc::new(AtomicUsize::new(0));
        let accepted = Arc::clone(&connections);
        let (disconnects, seen) = watch::channel(0);
        let script = ReplyScript {
            replies: replies.into(),
            next: AtomicUsize::new(0),
            requests: Arc::clone(&requests),
            disconnects,
        };
        let (script, tasks, stopped) = (Arc::new(script), TaskTracker::new(), stop.clone());
        let spawner = tasks.clone();
        tasks.spawn(stop.clone().run_until_cancelled_owned(async move {
            while let Ok((stream, _)) = listener.accept().await {
                accepted.fetch_add(1, Ordering::SeqCst);
                let script = Arc::clone(&script);
                let serve = async move {
                    // A client may disconnect at any time.
                    drop(script.serve(stream).await);
                };
                spawner.spawn(stopped.clone().run_until_cancelled_owned(serve));
            }
        }));
        Self { address, requests, disconnects: seen, connections, stop }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn requests(&self) -> Vec<ReceivedRequest> {
        self.requests.lock().unwrap().clone()
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// Waits until a client has disconnected before the end of its response.
    pub(crate) async fn wait_for_disconnect(&self) {
        self.disconnects.clone().wait_for(|disconnects| *disconnects > 0).await.unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl ReplyScript {
    async fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut received = Vec::new();
        while let Some(request) = read(&mut stream, &mut received).await? {
            self.requests.lock().unwrap().push(request);
            let next = self.next.fetch_add(1, Ordering::SeqCst).min(self.replies.len() - 1);
            if !self.reply(&mut stream, &self.replies[next]).await? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Returns whether the connection can be reused.
    async fn reply(&self, stream: &mut TcpStream, reply: &Reply) -> std::io::Result<bool> {
        if !matches!(reply.end, End::Silent) {
            stream.write_all(format!("{}transfer-encoding: chunked\r\n\r\n", reply.head).as_bytes()).await?;
            for chunk in reply.chunks.iter().filter(|chunk| !chunk.is_empty()) {
                write_chunk(stream, chunk).await?;
            }
        }
        match reply.end {
            End::Proper => {
                stream.write_all(b"0\r\n\r\n").await?;
                return Ok(true);
            }
            End::Abrupt => {}
            End::Stalled | End::Silent => {
                // Nothing more is sent, so this is the end of the connection.
                drop(stream.read(&mut [0]).await);
                self.disconnects.send_modify(|disconnects| *disconnects += 1);
            }
            End::Endless => {
                while write_chunk(stream, reply.chunks.last().unwrap()).await.is_ok() {}
                self.disconnects.send_modify(|disconnects| *disconnects += 1);
            }
        }
        Ok(false)
    }
}

async fn write_chunk(stream: &mut TcpStream, chunk: &[u8]) -> std::io::Result<()> {
    let framed = [format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat();
    stream.write_all(&framed).await
}

async fn read(stream: &mut TcpStream, received: &mut Vec<u8>) -> std::io::Result<Option<ReceivedRequest>> {
    let head = loop {
        if let Some(end) = received.windows(4).position(|window| window == b"\r\n\r\n") {
            let rest = received.split_off(end + 4);
            break String::from_utf8_lossy(&std::mem::replace(received, rest)).to_lowercase();
        }
        if stream.read_buf(received).await? == 0 {
            return Ok(None);
        }
    };
    let length =
        head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap().parse().unwrap();
    while received.len() < length {
        if stream.read_buf(received).await? == 0 {
            return Ok(None);
        }
    }
    let rest = received.split_off(length);
    let body = serde_json::from_slice(&std::mem::replace(received, rest)).unwrap();
    Ok(Some(ReceivedRequest { head, body }))
}
