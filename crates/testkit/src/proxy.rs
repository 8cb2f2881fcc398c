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
/// Pieces under way in one direction: what a slow link holds before it pushes back.
const IN_FLIGHT: usize = 64;
const MAX_CONNECTIONS: usize = 1024;
/// Accepting fails when the process has no descriptor left, which passes.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What the link does with bytes and connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Link {
    /// Everything passes, after the latency.
    #[default]
    Open,
    /// As a crashed peer: connections are reset, bytes under way are lost, new connections are closed at once.
    Reset,
    /// As a network that drops packets: nothing passes, and nobody is told. Connections stay, and new ones are accepted by
    /// the kernel. When the link opens again, what was sent meanwhile arrives late, as TCP's retransmission would bring it,
    /// even if the sender has given up or is dead; [`Link::Reset`] in between loses it.
    Silent,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Condition {
    link: Link,
    latency: Duration,
}

/// Listens on a port of its own for as long as it lives and passes connections on to one address.
#[derive(Debug)]
pub struct TcpProxy {
    address: SocketAddr,
    condition: Arc<watch::Sender<Condition>>,
    _stop: DropGuard,
}

impl TcpProxy {
    /// Must be called inside a tokio runtime, which serves the connections until the proxy is dropped.
    pub async fn start(upstream: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let condition = Arc::new(watch::Sender::new(Condition::default()));
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        let serving = serve(listener, upstream, Arc::clone(&condition), tasks.clone(), stop.clone());
        tasks.spawn(serving);
        tasks.close();
        Ok(Self { address, condition, _stop: stop.drop_guard() })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    #[must_use]
    pub fn link(&self) -> Link {
        self.condition.borrow().link
    }

    pub fn set_link(&self, link: Link) {
        self.condition.send_modify(|condition| condition.link = link);
    }

    /// Delays every byte by this long, in each direction. What is under way keeps its own delay.
    pub fn set_latency(&self, latency: Duration) {
        self.condition.send_modify(|condition| condition.latency = latency);
    }

    /// Opens the link and takes the latency away.
    pub fn heal(&self) {
        self.condition.send_replace(Condition::default());
    }
}

async fn serve(
    listener: TcpListener,
    upstream: SocketAddr,
    condition: Arc<watch::Sender<Condition>>,
    tasks: TaskTracker,
    stop: CancellationToken,
) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let accepting = async {
        loop {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            let Ok((client, _)) = listener.accept().await else {
                sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let (condition, stop) = (condition.subscribe(), stop.clone());
            tasks.spawn(async move {
                let _place = place;
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = connection(client, upstream, condition) => {}
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
async fn connection(mut client: TcpStream, upstream: SocketAddr, condition: watch::Receiver<Condition>) {
    let mut reset = condition.clone();
    let ended = tokio::select! {
        biased;
        _ = reset.wait_for(|condition| condition.link == Link::Reset) => Err(io::ErrorKind::ConnectionReset.into()),
        ended = pass_both(&mut client, upstream, &condition) => ended,
    };
    if ended.is_err() {
        // A half-read stream must not look like a polite goodbye. Where this fails, it is one.
        client.set_zero_linger().ok();
    }
}

/// Fails when there is no server.
async fn pass_both(
    client: &mut TcpStream,
    upstream: SocketAddr,
    condition: &watch::Receiver<Condition>,
) -> io::Result<()> {
    client.set_nodelay(true)?;
    // A silent link hides the server's absence too.
    opened(condition.clone()).await;
    let mut server = TcpStream::connect(upstream).await?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    tokio::join!(
        pass(from_client, to_server, condition.clone()),
        pass(from_server, to_client, condition.clone()),
    );
    Ok(())
}

type Piece = (Instant, Vec<u8>);

/// Passes bytes one way until the sender ends or the receiver is gone.
async fn pass(source: ReadHalf<'_>, sink: WriteHalf<'_>, condition: watch::Receiver<Condition>) {
    let (sender, receiver) = mpsc::channel(IN_FLIGHT);
    tokio::join!(gather(source, sender, condition.clone()), deliver(receiver, sink, condition));
}

async fn gather(
    mut source: ReadHalf<'_>,
    pieces: mpsc::Sender<Piece>,
    condition: watch::Receiver<Condition>,
) {
    let mut buffer = vec![0; BUFFER];
    loop {
        let read = tokio::select! {
            read = source.read(&mut buffer) => read,
            // Nobody takes it any more.
            () = pieces.closed() => return,
        };
        let Ok(count @ 1..) = read else { return };
        let due = Instant::now() + condition.borrow().latency;
        if pieces.send((due, buffer[..count].to_vec())).await.is_err() {
            return;
        }
    }
}

async fn deliver(
    mut pieces: mpsc::Receiver<Piece>,
    mut sink: WriteHalf<'_>,
    condition: watch::Receiver<Condition>,
) {
    while let Some((due, bytes)) = pieces.recv().await {
        sleep_until(due).await;
        opened(condition.clone()).await;
        if sink.write_all(&bytes).await.is_err() {
            return;
        }
    }
    // The news that there is no more also needs the link.
    opened(condition).await;
    // A receiver that is gone need not be told.
    sink.shutdown().await.ok();
}

/// Waits until bytes may pass. A proxy that is gone leaves nothing to wait for.
async fn opened(mut condition: watch::Receiver<Condition>) {
    condition.wait_for(|condition| condition.link == Link::Open).await.ok();
}

#[cfg(test)]
#[path = "proxy_tests.rs"]
mod tests;
