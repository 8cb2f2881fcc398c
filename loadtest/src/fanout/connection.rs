//! One stream request over its own TCP connection, as a browser or `curl` makes it.

use std::{io, net::SocketAddr, time::Duration};

use socket2::SockRef;
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpSocket, TcpStream},
    sync::Semaphore,
    time::timeout,
};

use super::{
    http_response::Response,
    sse::{Message, Parser},
};

/// How long a server may take from the connect to the head of its response.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);
/// Requests that are opened at the same time, so that thousands of readers do not overflow the listen queue.
const MAX_OPENING: usize = 256;
const READ_BYTES: usize = 16 * 1024;
/// Small socket buffers: when the reader stops, the server has to wait soon.
const SMALL_BYTES: u32 = 2048;
const SMALL_SEGMENT: u32 = 536;

/// The servers of streams, and the key to use.
#[derive(Debug)]
pub(super) struct StreamServers {
    addresses: Vec<SocketAddr>,
    api_key: Option<String>,
    opening: Semaphore,
}

impl StreamServers {
    pub(super) fn new(addresses: Vec<SocketAddr>, api_key: Option<String>) -> Self {
        Self { addresses, api_key, opening: Semaphore::new(MAX_OPENING) }
    }
}

/// How a reader sends its cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resume {
    LastEventId,
    Cursor,
}

/// The size of the kernel buffers between the server and a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Buffers {
    Default,
    Small,
}

/// The requested stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamRequest<'a> {
    pub(super) session: &'a str,
    pub(super) after: i64,
    pub(super) resume: Resume,
    pub(super) buffers: Buffers,
}

/// Why a stream ended.
#[derive(Debug)]
pub(super) enum StreamError {
    /// The connection failed or was closed.
    Connection,
    /// The server refused the request.
    Refused { status: u16, body: String },
    /// The response violates the protocol.
    Malformed(anyhow::Error),
}

impl From<io::Error> for StreamError {
    fn from(_: io::Error) -> Self {
        Self::Connection
    }
}

#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    response: Response,
    parser: Parser,
    /// Received events that were not returned yet.
    pending: Vec<Message>,
    /// The body of a refusal.
    refusal: Vec<u8>,
    bytes: u64,
}

impl Connection {
    /// Opens a stream at one of the servers, chosen by `attempt`.
    pub(super) async fn open(
        servers: &StreamServers,
        attempt: usize,
        wanted: StreamRequest<'_>,
    ) -> Result<Self, StreamError> {
        let _place = servers.opening.acquire().await.map_err(io::Error::other)?;
        match timeout(OPEN_TIMEOUT, Self::connect(servers, attempt, wanted)).await {
            Ok(opened) => opened,
            Err(_) => Err(StreamError::Connection),
        }
    }

    async fn connect(
        servers: &StreamServers,
        attempt: usize,
        wanted: StreamRequest<'_>,
    ) -> Result<Self, StreamError> {
        let server = servers.addresses[attempt % servers.addresses.len()];
        let socket = TcpSocket::new_v4()?;
        if wanted.buffers == Buffers::Small {
            socket.set_recv_buffer_size(SMALL_BYTES)?;
            SockRef::from(&socket).set_tcp_mss(SMALL_SEGMENT)?;
        }
        let mut stream = socket.connect(server).await?;
        stream.set_nodelay(true)?;
        stream.write_all(http_request(server, servers.api_key.as_deref(), wanted).as_bytes()).await?;
        let mut connection = Self {
            stream,
            response: Response::default(),
            parser: Parser::default(),
            pending: Vec::new(),
            refusal: Vec::new(),
            bytes: 0,
        };
        loop {
            match connection.response.status() {
                Some(200) => return Ok(connection),
                Some(status) if connection.response.is_over() => {
                    let body = String::from_utf8_lossy(&connection.refusal).into_owned();
                    return Err(StreamError::Refused { status, body });
                }
                _ => connection.read().await?,
            }
        }
    }

    /// The next events, at least one; `None` when the server has ended the stream. Cancel-safe.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<Message>>, StreamError> {
        while self.pending.is_empty() {
            if self.response.is_over() {
                return Ok(None);
            }
            self.read().await?;
        }
        Ok(Some(std::mem::take(&mut self.pending)))
    }

    async fn read(&mut self) -> Result<(), StreamError> {
        self.stream.readable().await?;
        self.read_available()
    }

    /// Not async, so that thousands of waiting readers do not hold a buffer each.
    fn read_available(&mut self) -> Result<(), StreamError> {
        let mut buffer = [0; READ_BYTES];
        let size = match self.stream.try_read(&mut buffer) {
            Ok(0) => return Err(StreamError::Connection),
            Ok(size) => size,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        self.bytes += size as u64;
        let mut body = Vec::new();
        let fed = self.response.feed(&buffer[..size], |bytes| body.extend_from_slice(bytes));
        fed.map_err(StreamError::Malformed)?;
        if self.response.status() == Some(200) {
            self.parser.feed(&body, &mut self.pending).map_err(StreamError::Malformed)?;
        } else {
            self.refusal.extend_from_slice(&body);
        }
        Ok(())
    }

    /// Bytes received so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Resets the connection, possibly in the middle of an event.
    pub(super) fn abort(self) -> io::Result<()> {
        SockRef::from(&self.stream).set_linger(Some(Duration::ZERO))
    }

    /// Closes the connection gracefully.
    pub(super) async fn close(mut self) -> io::Result<()> {
        self.stream.shutdown().await
    }
}

fn http_request(server: SocketAddr, api_key: Option<&str>, wanted: StreamRequest<'_>) -> String {
    let StreamRequest { session, after, resume, .. } = wanted;
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
