use remuda_domain::{SessionId, TenantId, WorkerId};
use remuda_transport::{DeltaSource, Memory};
use tokio::time::Instant;

use super::*;

const STDOUT: OutputStream = OutputStream::Stdout;
const STDERR: OutputStream = OutputStream::Stderr;

async fn publisher() -> (OutputPublisher, Box<dyn DeltaSource>) {
    let transport = Arc::new(Memory::new());
    let (tenant, session) = (TenantId::new(), SessionId::new());
    let source = transport.subscribe_deltas(tenant, session).await.unwrap();
    let fence = Fence { tenant, session, worker: WorkerId::new(), epoch: 1 };
    (OutputPublisher { transport, fence, run: RunId::new() }, source)
}

/// All published deltas. Nothing more may be published after this.
async fn received(publisher: OutputPublisher, mut source: Box<dyn DeltaSource>) -> Vec<Delta> {
    drop(publisher);
    let mut received = Vec::new();
    while let Ok(Some(deltas)) = tokio::time::timeout(Duration::from_millis(1), source.next()).await {
        received.extend(deltas);
    }
    received
}

fn pieces(deltas: &[Delta]) -> Vec<(DeltaKind, u64, &str)> {
    deltas.iter().map(|delta| (delta.kind, delta.offset, delta.text.as_str())).collect()
}

/// Joins the deltas of a stream, with a mark at each gap.
fn joined(deltas: &[Delta], kind: DeltaKind) -> String {
    let (mut text, mut end) = (String::new(), 0);
    for delta in deltas.iter().filter(|delta| delta.kind == kind) {
        assert!(delta.offset >= end, "published twice: {delta:?}");
        if delta.offset > end {
            text.push('…');
        }
        text.push_str(&delta.text);
        end = delta.offset + delta.text.len() as u64;
    }
    text
}

#[tokio::test(start_paused = true)]
async fn output_of_a_short_command_is_not_published() {
    let (publisher, source) = publisher().await;
    let output = LiveOutput::new(ToolCallId::new());
    let result = output
        .publish_while(
            async {
                sleep(Duration::from_secs(1)).await;
                output.write(STDOUT, b"quick\n");
                sleep(PUBLISH_INTERVAL / 2).await;
                7
            },
            &publisher,
        )
        .await;
    assert_eq!((result, received(publisher, source).await), (7, vec![]));
}

#[tokio::test(start_paused = true)]
async fn deltas_are_in_order_and_rate_limited() {
    let (publisher, mut source) = publisher().await;
    let output = LiveOutput::new(ToolCallId::new());
    let started = Instant::now();
    let command = async {
        for number in 0..100 {
            output.write(STDOUT, format!("{number}\n").as_bytes());
            if number == 50 {
                output.write(STDERR, b"half\n");
            }
            sleep(Duration::from_millis(10)).await;
        }
        output.write(STDOUT, b"end");
    };
    let mut arrived = Vec::new();
    let listen = async {
        while let Some(deltas) = source.next().await {
            arrived.push(started.elapsed());
            let last = deltas.iter().any(|delta| delta.text.ends_with("end"));
            assert!(deltas.len() <= 2, "one of each stream: {deltas:?}");
            if last {
                return;
            }
        }
    };
    tokio::join!(output.publish_while(command, &publisher), listen);
    // One per interval, and the rest at the end.
    assert!((8..=11).contains(&arrived.len()), "{arrived:?}");
    assert!(arrived[0] >= PUBLISH_INTERVAL && arrived[0] < 2 * PUBLISH_INTERVAL, "{arrived:?}");
}

#[tokio::test(start_paused = true)]
async fn remaining_output_is_published_when_the_call_ends() {
    let (publisher, source) = publisher().await;
    let (call, run) = (ToolCallId::new(), publisher.run);
    let output = LiveOutput::new(call);
    let command = async {
        output.write(STDOUT, b"one\n");
        output.write(STDERR, b"two\n");
        sleep(PUBLISH_INTERVAL * 3).await;
        output.write(STDOUT, "thr\u{e9}".as_bytes());
        output.write(STDOUT, b"\xe2\x82");
    };
    output.publish_while(command, &publisher).await;
    let deltas = received(publisher, source).await;
    assert_eq!(
        pieces(&deltas),
        [
            (DeltaKind::Stdout, 0, "one\n"),
            (DeltaKind::Stderr, 0, "two\n"),
            (DeltaKind::Stdout, 4, "thr\u{e9}\u{fffd}")
        ]
    );
    assert!(deltas.iter().all(|delta| delta.call() == Some(call) && delta.run == run));
}

#[tokio::test(start_paused = true)]
async fn flooding_output_is_cut_off_at_the_limit_with_a_notice() {
    let (publisher, source) = publisher().await;
    let output = LiveOutput::new(ToolCallId::new());
    let flood = vec![b'y'; 256 * 1024];
    let command = async {
        // Far longer than it takes to publish a mebibyte.
        for _ in 0..200 {
            output.write(STDOUT, &flood);
            let buffered_bytes = output.lock().stdout.buffered_bytes();
            assert!(buffered_bytes <= 64 * 1024, "{buffered_bytes}");
            sleep(PUBLISH_INTERVAL).await;
        }
    };
    let started = Instant::now();
    output.publish_while(command, &publisher).await;
    assert_eq!(started.elapsed(), PUBLISH_INTERVAL * 200, "publishing does not delay the command");
    let deltas = received(publisher, source).await;
    assert!(deltas.iter().all(|delta| delta.text.len() <= MAX_DELTA_BYTES));
    let published: usize =
        deltas.iter().filter(|delta| delta.kind == DeltaKind::Stdout).map(|it| it.text.len()).sum();
    assert_eq!(published, MAX_CALL_BYTES);
    assert!(joined(&deltas, DeltaKind::Stdout).contains('…'));
    let notices: Vec<_> = deltas.iter().filter(|delta| delta.kind == DeltaKind::Notice).collect();
    assert_eq!((notices.len(), notices[0].text.as_str()), (1, NOTICE));
    assert_eq!(deltas.last().map(|delta| delta.kind), Some(DeltaKind::Notice));
    assert_eq!(output.lock().stdout.buffered_bytes(), 0);
}

#[test]
fn characters_are_not_split_and_invalid_bytes_are_replaced() {
    let all = "a\u{e9}\u{20ac}\u{1f40e}z".as_bytes();
    for size in 1..=all.len() {
        let mut buffer = StreamBuffer::default();
        all.chunks(size).for_each(|chunk| buffer.push(chunk));
        assert_eq!(buffer.take(100), Some((0, "a\u{e9}\u{20ac}\u{1f40e}z".to_owned())), "{size}");
    }
    let bad = b"a\xff\xc3b\0\xf0\x9f";
    for size in 1..=bad.len() {
        let mut buffer = StreamBuffer::default();
        bad.chunks(size).for_each(|chunk| buffer.push(chunk));
        buffer.end();
        let whole = String::from_utf8_lossy(bad).replace('\0', "\u{fffd}");
        assert_eq!(buffer.take(100), Some((0, whole)), "{size}");
    }
    let mut buffer = StreamBuffer::default();
    buffer.push("x\u{1f40e}y".as_bytes());
    let mut taken = Vec::new();
    while let Some(piece) = buffer.take(4) {
        taken.push(piece);
    }
    assert_eq!(taken, [(0, "x".to_owned()), (1, "\u{1f40e}".to_owned()), (5, "y".to_owned())]);
}

#[test]
fn dropped_output_shows_as_a_gap_in_the_offsets() {
    let mut buffer = StreamBuffer::default();
    buffer.push("\u{20ac}".repeat(30_000).as_bytes());
    buffer.push(b"lost too");
    let mut end = 0;
    while let Some((offset, text)) = buffer.take(MAX_DELTA_BYTES) {
        assert_eq!(offset, end);
        assert!(text.chars().all(|c| c == '\u{20ac}'));
        end += text.len() as u64;
    }
    assert!((60_000..=64 * 1024).contains(&end), "{end}");
    buffer.push(b"again");
    assert_eq!(buffer.take(100), Some((90_000 + 8, "again".to_owned())));
}

#[test]
fn documented_limits_are_the_enforced_ones() {
    let docs = include_str!("../../../../docs/streaming.md");
    let per_second = 1000 / PUBLISH_INTERVAL.as_millis();
    let (delta, buffered) = (MAX_DELTA_BYTES / 1024, stream_buffer::MAX_BUFFERED_BYTES / 1024);
    for text in [
        format!("about {per_second} deltas a second, each of at most {delta} KiB"),
        format!("Output beyond {buffered} KiB"),
        format!("After {} MiB of a call", MAX_CALL_BYTES >> 20),
    ] {
        assert!(docs.contains(&text), "{text}");
    }
}
