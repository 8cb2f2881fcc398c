//! The link over a pair of pipes, with the test as the container.

use std::pin::Pin;

use remuda_supervisor::{End, ExitStatus};
use tokio::io::{AsyncReadExt, DuplexStream};

use super::*;

const PATIENCE: Duration = Duration::from_secs(10);

/// The other side.
struct Container {
    stdin: DuplexStream,
    decoder: Decoder,
    stdout: mpsc::Sender<Result<LogOutput, bollard::errors::Error>>,
}

impl Container {
    fn new(tasks: &TaskTracker) -> (Self, Link) {
        let (input, stdin) = tokio::io::duplex(64 * 1024);
        let (stdout, mut pieces) = mpsc::channel(64);
        let output = futures::stream::poll_fn(move |context| pieces.poll_recv(context));
        let attached = AttachContainerResults { output: Box::pin(output), input: Box::pin(input) };
        (Self { stdin, decoder: Decoder::default(), stdout }, Link::new(attached, tasks))
    }

    async fn say(&self, channel: u32, message: FromSupervisor) {
        let message = Frame { channel, message }.to_bytes().into();
        self.stdout.send(Ok(LogOutput::StdOut { message })).await.unwrap();
    }

    async fn hear(&mut self) -> Frame<ToSupervisor> {
        loop {
            if let Some(frame) = self.decoder.next().unwrap() {
                return frame;
            }
            let mut bytes = [0; 1024];
            let count = timeout(PATIENCE, self.stdin.read(&mut bytes)).await.unwrap().unwrap();
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
    let (mut container, link) = Container::new(&tasks);
    container.say(CONTROL, FromSupervisor::Ready).await;
    link.ready(PATIENCE).await.unwrap();
    let (mut first, mut second) = (link.open().await.unwrap(), link.open().await.unwrap());
    first.send(ToSupervisor::Input(b"a".to_vec())).await.unwrap();
    assert_eq!(container.hear().await, Frame { channel: 1, message: ToSupervisor::Input(b"a".to_vec()) });
    second.send(ToSupervisor::Stop).await.unwrap();
    assert_eq!(container.hear().await, Frame { channel: 2, message: ToSupervisor::Stop });
    container.say(2, FromSupervisor::Stdout(b"for two".to_vec())).await;
    container.say(1, ended()).await;
    assert_eq!(second.receive().await.unwrap(), FromSupervisor::Stdout(b"for two".to_vec()));
    assert_eq!(first.receive().await.unwrap(), ended());
    // The first has ended by itself, so only the second is killed.
    drop((first, second));
    assert_eq!(container.hear().await, Frame { channel: 2, message: ToSupervisor::Kill });
    // A place is free again only when the command has ended.
    assert_eq!(link.shared.free.available_permits(), MAX_CHANNELS - 1);
    container.say(2, ended()).await;
    let third = link.open().await.unwrap();
    assert_eq!(third.id, 3);
}

/// A kill overtakes what waits to be written; what it is meant for must not begin afterwards.
#[tokio::test]
async fn what_is_dropped_before_it_was_sent_never_begins() {
    let tasks = TaskTracker::new();
    let (mut container, link) = Container::new(&tasks);
    let mut never = link.open().await.unwrap();
    // Nothing is written before this task gives way.
    never.send(ToSupervisor::Stop).await.unwrap();
    drop(never);
    let mut next = link.open().await.unwrap();
    next.send(ToSupervisor::Stop).await.unwrap();
    assert_eq!(container.hear().await, Frame { channel: 2, message: ToSupervisor::Stop });
    assert_eq!(link.shared.free.available_permits(), MAX_CHANNELS - 1);
}

#[tokio::test]
async fn food_goes_first_and_only_the_newest() {
    let tasks = TaskTracker::new();
    let (mut container, link) = Container::new(&tasks);
    let now = Instant::now();
    link.feed(now + Duration::from_secs(1));
    link.feed(now + Duration::from_secs(100));
    match container.hear().await {
        Frame { channel: CONTROL, message: ToSupervisor::Feed(time) } => {
            assert!(time > Duration::from_secs(50), "{time:?}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_broken_stream_ends_every_call_with_the_reason() {
    let tasks = TaskTracker::new();
    let (container, link) = Container::new(&tasks);
    let mut channel = link.open().await.unwrap();
    drop(container);
    let error = channel.receive().await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert!(error.to_string().starts_with("the sandbox is gone: its "), "{error}");
    assert_eq!(link.open().await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(channel.send(ToSupervisor::Stop).await.unwrap_err().code(), Code::Unavailable);
    assert!(!link.alive());
}

#[tokio::test]
async fn nonsense_ends_the_link() {
    let tasks = TaskTracker::new();
    let (container, link) = Container::new(&tasks);
    let message = vec![0xff; 64].into();
    container.stdout.send(Ok(LogOutput::StdOut { message })).await.unwrap();
    timeout(PATIENCE, link.shared.gone.cancelled()).await.unwrap();
    let error = link.ready(PATIENCE).await.unwrap_err();
    assert!(error.to_string().contains("expected a frame"), "{error}");
}

#[tokio::test]
async fn dropping_the_link_closes_the_stream() {
    let tasks = TaskTracker::new();
    let (mut container, link) = Container::new(&tasks);
    drop(link);
    let mut rest = Vec::new();
    timeout(PATIENCE, Pin::new(&mut container.stdin).read_to_end(&mut rest)).await.unwrap().unwrap();
    tasks.close();
    timeout(PATIENCE, tasks.wait()).await.unwrap();
}
