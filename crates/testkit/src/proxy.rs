//! A TCP proxy whose link can be cut, healed and slowed.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::{Semaphore, mpsc, watch},
    time::{Instant, sleep, sleep_until},
};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

const BUFFER: usize = 16 * 1024;
/// Chunks in flight per direction, before the proxy applies backpressure.
const MAX_CHUNKS_IN_FLIGHT: usize = 64;
const MAX_CONNECTIONS: usize = 1024;
/// Pause after a failed accept, for example when no file descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How the link treats bytes and connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Link {
    /// Everything is forwarded, after the latency.
    #[default]
    Open,
    /// Like a crashed peer: connections are reset, bytes in flight are lost, new connections are closed at once.
    Reset,
    /// Like a network that drops packets: nothing is forwarded and no error is reported. Connections stay open, and the kernel
    /// accepts new ones. When the link opens again, the bytes sent meanwhile arrive late, as with TCP retransmission, even if
    /// the sender has given up or is dead; [`Link::Reset`] in between loses them.
    Silent,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LinkState {
    link: Link,
    latency: Duration,
}

/// Listens on its own port until it is dropped, and forwards connections to one address.
#[derive(Debug)]
pub struct TcpProxy {
    address: SocketAddr,
    state: Arc<watch::Sender<LinkState>>,
    _stop: DropGuard,
}

impl TcpProxy {
    /// Must be called inside a tokio runtime, which serves the connections until the proxy is dropped.
    pub async fn start(upstream: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let state = Arc::new(watch::Sender::new(LinkState::default()));
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        let serving = serve(listener, upstream, Arc::clone(&state), tasks.clone(), stop.clone());
        tasks.spawn(serving);
        tasks.close();
        Ok(Self { address, state, _stop: stop.drop_guard() })
    }

    /// The address it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    #[must_use]
    pub fn link(&self) -> Link {
        self.state.borrow().link
    }

    pub fn set_link(&self, link: Link) {
        self.state.send_modify(|state| state.link = link);
    }

    /// Delays every byte by this long, in each direction. Bytes in flight keep their delay.
    pub fn set_latency(&self, latency: Duration) {
        self.state.send_modify(|state| state.latency = latency);
    }

    /// Opens the link and removes the latency.
    pub fn heal(&self) {
        self.state.send_replace(LinkState::default());
    }
}

async fn serve(
    listener: TcpListener,
    upstream: SocketAddr,
    state: Arc<watch::Sender<LinkState>>,
    tasks: TaskTracker,
    stop: CancellationToken,
) {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let accepting = async {
        loop {
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
            let Ok((client, _)) = listener.accept().await else {
                sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let (state, stop) = (state.subscribe(), stop.clone());
            tasks.spawn(async move {
                let _permit = permit;
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = serve_connection(client, upstream, state) => {}
                }
            });
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = accepting => {}
    }
}

/// Serves one connection to its end, or until the link is reset.
async fn serve_connection(mut client: TcpStream, upstream: SocketAddr, state: watch::Receiver<LinkState>) {
    let mut reset = state.clone();
    let ended = tokio::select! {
        biased;
        _ = reset.wait_for(|state| state.link == Link::Reset) => Err(io::ErrorKind::ConnectionReset.into()),
        ended = forward_both(&mut client, upstream, &state) => ended,
    };
    if ended.is_err() {
        // Reset instead of a graceful close, so that the client does not take a truncated stream for a complete one. Best effort.
        client.set_zero_linger().ok();
    }
}

/// Connects to the server and forwards both directions. Fails if there is no server.
async fn forward_both(
    client: &mut TcpStream,
    upstream: SocketAddr,
    state: &watch::Receiver<LinkState>,
) -> io::Result<()> {
    client.set_nodelay(true)?;
    // A silent link also hides a missing server.
    wait_until_open(state.clone()).await;
    let mut server = TcpStream::connect(upstream).await?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    tokio::join!(
        forward(from_client, to_server, state.clone()),
        forward(from_server, to_client, state.clone()),
    );
    Ok(())
}

type Chunk = (Instant, Vec<u8>);

/// Forwards bytes in one direction until the sender ends or the receiver is gone.
async fn forward(source: ReadHalf<'_>, sink: WriteHalf<'_>, state: watch::Receiver<LinkState>) {
    let (sender, receiver) = mpsc::channel(MAX_CHUNKS_IN_FLIGHT);
    tokio::join!(read_chunks(source, sender, state.clone()), write_chunks(receiver, sink, state));
}

async fn read_chunks(
    mut source: ReadHalf<'_>,
    chunks: mpsc::Sender<Chunk>,
    state: watch::Receiver<LinkState>,
) {
    let mut buffer = vec![0; BUFFER];
    loop {
        let read = tokio::select! {
            read = source.read(&mut buffer) => read,
            // The receiver is gone.
            () = chunks.closed() => return,
        };
        let Ok(count @ 1..) = read else { return };
        let due = Instant::now() + state.borrow().latency;
        if chunks.send((due, buffer[..count].to_vec())).await.is_err() {
            return;
        }
    }
}

async fn write_chunks(
    mut chunks: mpsc::Receiver<Chunk>,
    mut sink: WriteHalf<'_>,
    state: watch::Receiver<LinkState>,
) {
    while let Some((due, bytes)) = chunks.recv().await {
        sleep_until(due).await;
        wait_until_open(state.clone()).await;
        if sink.write_all(&bytes).await.is_err() {
            return;
        }
    }
    // The end of the stream also needs an open link.
    wait_until_open(state).await;
    // The receiver may already be gone.
    sink.shutdown().await.ok();
}

/// Waits until the link is open. Returns at once if the proxy is gone.
async fn wait_until_open(mut state: watch::Receiver<LinkState>) {
    state.wait_for(|state| state.link == Link::Open).await.ok();
}

#[cfg(test)]
#[path = "proxy_tests.rs"]
mod tests;
