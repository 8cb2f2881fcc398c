//! Tests of the connection over in-memory pipes; the test plays the instance.

use std::pin::Pin;

use remuda_supervisor::{End, ExitStatus};
use tokio::io::{AsyncReadExt, DuplexStream};

use super::*;

const TIMEOUT: Duration = Duration::from_secs(10);

/// The instance's side of the stream.
struct Instance {
    stdin: DuplexStream,
    decoder: Decoder,
    stdout: DuplexStream,
}

impl Instance {
    fn new(tasks: &TaskTracker) -> (Self, InstanceConnection) {
        let (input, stdin) = tokio::io::duplex(64 * 1024);
        let (stdout, output) = tokio::io::duplex(64 * 1024);
        let stream = ByteStream::new(output, input);
        let connection = InstanceConnection::new(stream, "supervisor".to_owned(), "instance", tasks);
        (Self { stdin, decoder: Decoder::default(), stdout }, connection)
    }

    async fn send_message(&mut self, channel: u32, message: FromSupervisor) {
        self.stdout.write_all(&Frame { channel, message }.to_bytes()).await.unwrap();
    }

    async fn receive_message(&mut self) -> Frame<ToSupervisor> {
        loop {
            if let Some(frame) = self.decoder.next().unwrap() {
                return frame;
            }
            let mut bytes = [0; 1024];
            let count = timeout(TIMEOUT, self.stdin.read(&mut bytes)).await.unwrap().unwrap();
            assert_ne!(count, 0, "the stream ended");
            self.decoder.push(&bytes[..count]);
        }
    }
}

fn ended() -> FromSupervisor {
    let status = ExitStatus::Exited(0);
    FromSupervisor::Ended(End { status, cpu_ms: 0, max_rss_kib: 0, left_behind: 0, out_of_memory: false })
}

#[tokio::test]
async fn channels_do_not_mix_and_dropping_one_kills() {
    let tasks = TaskTracker::new();
    let (mut instance, connection) = Instance::new(&tasks);
    instance.send_message(CONTROL, FromSupervisor::Ready).await;
    connection.ready(TIMEOUT).await.unwrap();
    let (mut first, mut second) = (connection.open().await.unwrap(), connection.open().await.unwrap());
    first.send(ToSupervisor::Input(b"a".to_vec())).await.unwrap();
    assert_eq!(
        instance.receive_message().await,
        Frame { channel: 1, message: ToSupervisor::Input(b"a".to_vec()) }
    );
    second.send(ToSupervisor::Stop).await.unwrap();
    assert_eq!(instance.receive_message().await, Frame { channel: 2, message: ToSupervisor::Stop });
    instance.send_message(2, FromSupervisor::Stdout(b"for two".to_vec())).await;
    instance.send_message(1, ended()).await;
    assert_eq!(second.receive().await.unwrap(), FromSupervisor::Stdout(b"for two".to_vec()));
    assert_eq!(first.receive().await.unwrap(), ended());
    // The first has ended by itself, so only the second is killed.
    drop((first, second));
    assert_eq!(instance.receive_message().await, Frame { channel: 2, message: ToSupervisor::Kill });
    // The permit is released only when the command has ended.
    assert_eq!(connection.shared.channel_permits.available_permits(), MAX_CHANNELS - 1);
    instance.send_message(2, ended()).await;
    let third = connection.open().await.unwrap();
    assert_eq!(third.id, 3);
}

/// A kill overtakes queued messages; the killed command must not start afterwards.
#[tokio::test]
async fn command_dropped_before_it_was_sent_never_starts() {
    let tasks = TaskTracker::new();
    let (mut instance, connection) = Instance::new(&tasks);
    let mut never = connection.open().await.unwrap();
    // Nothing is written before this task yields.
    never.send(ToSupervisor::Stop).await.unwrap();
    drop(never);
    let mut next = connection.open().await.unwrap();
    next.send(ToSupervisor::Stop).await.unwrap();
    assert_eq!(instance.receive_message().await, Frame { channel: 2, message: ToSupervisor::Stop });
    assert_eq!(connection.shared.channel_permits.available_permits(), MAX_CHANNELS - 1);
}

#[tokio::test]
async fn only_the_latest_watchdog_feed_is_sent() {
    let tasks = TaskTracker::new();
    let (mut instance, connection) = Instance::new(&tasks);
    let now = Instant::now();
    connection.feed_watchdog(now + Duration::from_secs(1));
    connection.feed_watchdog(now + Duration::from_secs(100));
    match instance.receive_message().await {
        Frame { channel: CONTROL, message: ToSupervisor::FeedWatchdog(time) } => {
            assert!(time > Duration::from_secs(50), "{time:?}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn broken_stream_fails_all_calls_with_the_reason() {
    let tasks = TaskTracker::new();
    let (instance, connection) = Instance::new(&tasks);
    let mut channel = connection.open().await.unwrap();
    drop(instance);
    let error = channel.receive().await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert!(error.to_string().starts_with("the sandbox is gone: its "), "{error}");
    assert_eq!(connection.open().await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(channel.send(ToSupervisor::Stop).await.unwrap_err().code(), Code::Unavailable);
    assert!(!connection.alive());
}

#[tokio::test]
async fn malformed_frames_close_the_connection() {
    let tasks = TaskTracker::new();
    let (mut instance, connection) = Instance::new(&tasks);
    instance.stdout.write_all(&[0xff; 64]).await.unwrap();
    timeout(TIMEOUT, connection.shared.closed.cancelled()).await.unwrap();
    let error = connection.ready(TIMEOUT).await.unwrap_err();
    assert!(error.to_string().contains("expected a frame"), "{error}");
}

#[tokio::test]
async fn dropping_the_connection_closes_the_stream() {
    let tasks = TaskTracker::new();
    let (mut instance, connection) = Instance::new(&tasks);
    drop(connection);
    let mut rest = Vec::new();
    timeout(TIMEOUT, Pin::new(&mut instance.stdin).read_to_end(&mut rest)).await.unwrap().unwrap();
    tasks.close();
    timeout(TIMEOUT, tasks.wait()).await.unwrap();
}
