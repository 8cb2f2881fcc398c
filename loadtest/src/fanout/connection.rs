//! One request for a stream, over a connection of its own, as every browser and every `curl` makes it.

use std::{io, net::SocketAddr, time::Duration};

use socket2::SockRef;
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpSocket, TcpStream},
    sync::Semaphore,
    time::timeout,
};

use super::{
    sse::{Message, Parser},
    wire::Response,
};

/// How long a server may take from the first packet to the head of its answer.
const OPEN: Duration = Duration::from_secs(10);
/// Requests under way at the same time, so that thousands of readers do not overflow the queue of the listening socket.
const OPENING_AT_ONCE: usize = 256;
const READ_BYTES: usize = 16 * 1024;
/// Little of a stream fits in between when the reader takes no more, so that it is the server which has to wait.
const LITTLE_BYTES: u32 = 2048;
const LITTLE_SEGMENT: u32 = 536;

/// Where streams are served, and as whom to ask for them.
#[derive(Debug)]
pub(super) struct Places {
    servers: Vec<SocketAddr>,
    api_key: Option<String>,
    opening: Semaphore,
}

impl Places {
    pub(super) fn new(servers: Vec<SocketAddr>, api_key: Option<String>) -> Self {
        Self { servers, api_key, opening: Semaphore::new(OPENING_AT_ONCE) }
    }
}

/// How a reader says what it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resume {
    LastEventId,
    Cursor,
}

/// How much the kernel may hold between the server and a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Buffers {
    Usual,
    Little,
}

/// What to ask for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish<'a> {
    pub(super) session: &'a str,
    pub(super) after: i64,
    pub(super) resume: Resume,
    pub(super) buffers: Buffers,
}

/// Why there is no more.
#[derive(Debug)]
pub(super) enum Broken {
    /// The connection failed, as connections do.
    Connection,
    /// The server said no.
    Refused { status: u16, body: String },
    /// What came is not what was promised.
    Malformed(anyhow::Error),
}

impl From<io::Error> for Broken {
    fn from(_: io::Error) -> Self {
        Self::Connection
    }
}

#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    response: Response,
    parser: Parser,
    /// Came with the head, or after it, and nobody took it yet.
    waiting: Vec<Message>,
    /// The answer of a server that said no.
    refusal: Vec<u8>,
    bytes: u64,
}

impl Connection {
    /// Asks the server whose turn it is.
    pub(super) async fn open(places: &Places, turn: usize, wish: Wish<'_>) -> Result<Self, Broken> {
        let _place = places.opening.acquire().await.map_err(io::Error::other)?;
        match timeout(OPEN, Self::ask(places, turn, wish)).await {
            Ok(opened) => opened,
            Err(_) => Err(Broken::Connection),
        }
    }

    async fn ask(places: &Places, turn: usize, wish: Wish<'_>) -> Result<Self, Broken> {
        let server = places.servers[turn % places.servers.len()];
        let socket = TcpSocket::new_v4()?;
        if wish.buffers == Buffers::Little {
            socket.set_recv_buffer_size(LITTLE_BYTES)?;
            SockRef::from(&socket).set_tcp_mss(LITTLE_SEGMENT)?;
        }
        let mut stream = socket.connect(server).await?;
        stream.set_nodelay(true)?;
        stream.write_all(request(server, places.api_key.as_deref(), wish).as_bytes()).await?;
        let mut connection = Self {
            stream,
            response: Response::default(),
            parser: Parser::default(),
            waiting: Vec::new(),
            refusal: Vec::new(),
            bytes: 0,
        };
        loop {
            match connection.response.status() {
                Some(200) => return Ok(connection),
                Some(status) if connection.response.is_over() => {
                    let body = String::from_utf8_lossy(&connection.refusal).into_owned();
                    return Err(Broken::Refused { status, body });
                }
                _ => connection.read().await?,
            }
        }
    }

    /// The next events, at least one; `None` when the server has ended the stream. Nothing is lost when it is dropped.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<Message>>, Broken> {
        while self.waiting.is_empty() {
            if self.response.is_over() {
                return Ok(None);
            }
            self.read().await?;
        }
        Ok(Some(std::mem::take(&mut self.waiting)))
    }

    async fn read(&mut self) -> Result<(), Broken> {
        self.stream.readable().await?;
        self.take_bytes()
    }

    /// Not asynchronous, so that thousands of waiting readers need no buffer each.
    fn take_bytes(&mut self) -> Result<(), Broken> {
        let mut buffer = [0; READ_BYTES];
        let size = match self.stream.try_read(&mut buffer) {
            Ok(0) => return Err(Broken::Connection),
            Ok(size) => size,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        self.bytes += size as u64;
        let mut body = Vec::new();
        let fed = self.response.feed(&buffer[..size], |bytes| body.extend_from_slice(bytes));
        fed.map_err(Broken::Malformed)?;
        if self.response.status() == Some(200) {
            self.parser.feed(&body, &mut self.waiting).map_err(Broken::Malformed)?;
        } else {
            self.refusal.extend_from_slice(&body);
        }
        Ok(())
    }

    /// Bytes that came so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Ends it without a word: the server gets a reset, also in the middle of what it says.
    pub(super) fn abort(self) -> io::Result<()> {
        SockRef::from(&self.stream).set_linger(Some(Duration::ZERO))
    }

    /// Ends it as programs do.
    pub(super) async fn close(mut self) -> io::Result<()> {
        self.stream.shutdown().await
    }
}

fn request(server: SocketAddr, api_key: Option<&str>, wish: Wish<'_>) -> String {
    let Wish { session, after, resume, .. } = wish;
    let query = if resume == Resume::Cursor { format!("?cursor={after}") } else { String::new() };
    let mut request = format!("GET /api/v1/sessions/{session}/events{query} HTTP/1.1\r\nhost: {server}\r\n");
    request.push_str("accept: text/event-stream\r\n");
    if resume == Resume::LastEventId {
        request.push_str(&format!("last-event-id: {after}\r\n"));
    }
    if let Some(key) = api_key {
        request.push_str(&format!("authorization: Bearer {key}\r\n"));
    }
    request.push_str("\r\n");
    request
}
