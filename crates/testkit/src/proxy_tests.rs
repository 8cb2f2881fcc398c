use super::*;
use crate::wait_for;

const TIMEOUT: Duration = Duration::from_secs(10);
/// Long enough that loopback would have delivered the bytes.
const SILENCE: Duration = Duration::from_millis(100);

/// Starts an echo server behind a proxy.
async fn start_echo_server() -> (TcpProxy, TaskTracker, CancellationToken) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    let (spawner, until) = (tasks.clone(), stop.clone());
    tasks.spawn(async move {
        while let Some(Ok((stream, _))) = until.run_until_cancelled(listener.accept()).await {
            spawner.spawn(async move {
                let (mut source, mut sink) = stream.into_split();
                tokio::io::copy(&mut source, &mut sink).await.ok();
            });
        }
    });
    (TcpProxy::start(address).await.unwrap(), tasks, stop)
}

async fn exchange(stream: &mut TcpStream, text: &str) -> io::Result<String> {
    stream.write_all(text.as_bytes()).await?;
    receive(stream, text.len()).await
}

async fn receive(stream: &mut TcpStream, length: usize) -> io::Result<String> {
    let mut answer = vec![0; length];
    stream.read_exact(&mut answer).await?;
    Ok(String::from_utf8(answer).unwrap())
}

/// Whether the peer has closed or reset the connection.
async fn is_closed(stream: &mut TcpStream) -> bool {
    matches!(tokio::time::timeout(TIMEOUT, stream.read(&mut [0; 1])).await, Ok(Ok(0) | Err(_)))
}

#[tokio::test]
async fn bytes_and_end_of_stream_are_forwarded_both_ways() {
    let (proxy, _tasks, stop) = start_echo_server().await;
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(exchange(&mut stream, "hello").await.unwrap(), "hello");
    // More than all buffers hold at once.
    let large: Vec<u8> = (0..8_000_000u32).map(|index| index.to_le_bytes()[0]).collect();
    let (mut source, mut sink) = stream.split();
    let mut back = Vec::new();
    let sending = async {
        sink.write_all(&large).await.unwrap();
        sink.shutdown().await.unwrap();
    };
    let ((), received) = tokio::join!(sending, source.read_to_end(&mut back));
    assert_eq!(received.unwrap(), large.len());
    assert!(back == large, "bytes were changed");
    stop.cancel();
}

#[tokio::test]
async fn reset_link_drops_old_and_new_connections_until_healed() {
    let (proxy, _tasks, stop) = start_echo_server().await;
    let mut old = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(exchange(&mut old, "hello").await.unwrap(), "hello");
    proxy.set_link(Link::Reset);
    assert!(is_closed(&mut old).await);
    let mut new = TcpStream::connect(proxy.address()).await.unwrap();
    assert!(is_closed(&mut new).await);
    proxy.heal();
    let mut healed = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(exchange(&mut healed, "again").await.unwrap(), "again");
    stop.cancel();
}

#[tokio::test]
async fn silent_link_delivers_late_unless_it_is_reset() {
    let (proxy, _tasks, stop) = start_echo_server().await;
    let mut old = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(exchange(&mut old, "hello").await.unwrap(), "hello");
    proxy.set_link(Link::Silent);
    assert_eq!(proxy.link(), Link::Silent);
    let mut new = TcpStream::connect(proxy.address()).await.unwrap();
    for stream in [&mut old, &mut new] {
        stream.write_all(b"late").await.unwrap();
        assert!(tokio::time::timeout(SILENCE, stream.read(&mut [0; 1])).await.is_err(), "nothing may pass");
    }
    proxy.heal();
    assert_eq!(receive(&mut old, 4).await.unwrap(), "late");
    assert_eq!(receive(&mut new, 4).await.unwrap(), "late");

    proxy.set_link(Link::Silent);
    old.write_all(b"lost").await.unwrap();
    proxy.set_link(Link::Reset);
    assert!(is_closed(&mut old).await);
    stop.cancel();
}

#[tokio::test]
async fn latency_delays_each_direction_without_limiting_throughput() {
    let (proxy, _tasks, stop) = start_echo_server().await;
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    exchange(&mut stream, "warm").await.unwrap();
    let latency = Duration::from_millis(60);
    proxy.set_latency(latency);
    let started = Instant::now();
    assert_eq!(exchange(&mut stream, "hello").await.unwrap(), "hello");
    assert!(started.elapsed() >= latency * 2, "{:?}", started.elapsed());
    // Chunks are in flight together: one after the other they would take more than ten seconds.
    let started = Instant::now();
    let text = "x".repeat(BUFFER * 100);
    let (mut source, mut sink) = stream.split();
    let mut back = vec![0; text.len()];
    let (sent, received) = tokio::join!(sink.write_all(text.as_bytes()), source.read_exact(&mut back));
    sent.and(received.map(drop)).unwrap();
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    proxy.heal();
    wait_for("the latency to be gone", TIMEOUT, || async {
        let mut fresh = TcpStream::connect(proxy.address()).await.unwrap();
        let started = Instant::now();
        exchange(&mut fresh, "quick").await.unwrap();
        started.elapsed() < latency
    })
    .await;
    stop.cancel();
}

#[tokio::test]
async fn dropped_proxy_closes_connections_and_listener() {
    let (proxy, _tasks, stop) = start_echo_server().await;
    let address = proxy.address();
    let mut stream = TcpStream::connect(address).await.unwrap();
    exchange(&mut stream, "hello").await.unwrap();
    drop(proxy);
    assert!(is_closed(&mut stream).await);
    wait_for("the listener to be gone", TIMEOUT, || async { TcpStream::connect(address).await.is_err() })
        .await;
    stop.cancel();
}
