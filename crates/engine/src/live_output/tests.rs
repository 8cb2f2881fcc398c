use remuda_domain::{SessionId, TenantId, WorkerId};
use remuda_transport::{DeltaSource, Memory};
use tokio::time::Instant;

use super::*;

const STDOUT: OutputStream = OutputStream::Stdout;
const STDERR: OutputStream = OutputStream::Stderr;

async fn audience() -> (Audience, Box<dyn DeltaSource>) {
    let transport = Arc::new(Memory::new());
    let (tenant, session) = (TenantId::new(), SessionId::new());
    let source = transport.subscribe_deltas(tenant, session).await.unwrap();
    let fence = Fence { tenant, session, worker: WorkerId::new(), epoch: 1 };
    (Audience { transport, fence, run: RunId::new() }, source)
}

/// Everything that was told, now that nothing more is.
async fn heard(audience: Audience, mut source: Box<dyn DeltaSource>) -> Vec<Delta> {
    drop(audience);
    let mut heard = Vec::new();
    while let Ok(Some(deltas)) = tokio::time::timeout(Duration::from_millis(1), source.next()).await {
        heard.extend(deltas);
    }
    heard
}

fn pieces(deltas: &[Delta]) -> Vec<(DeltaKind, u64, &str)> {
    deltas.iter().map(|delta| (delta.kind, delta.offset, delta.text.as_str())).collect()
}

/// Joins what was told of a stream, with a mark where some was left out.
fn joined(deltas: &[Delta], kind: DeltaKind) -> String {
    let (mut text, mut end) = (String::new(), 0);
    for delta in deltas.iter().filter(|delta| delta.kind == kind) {
        assert!(delta.offset >= end, "said twice: {delta:?}");
        if delta.offset > end {
            text.push('…');
        }
        text.push_str(&delta.text);
        end = delta.offset + delta.text.len() as u64;
    }
    text
}

#[tokio::test(start_paused = true)]
async fn what_is_over_quickly_is_not_told() {
    let (audience, source) = audience().await;
    let output = LiveOutput::new(ToolCallId::new());
    let answer = output
        .tell_while(
            async {
                sleep(Duration::from_secs(1)).await;
                output.write(STDOUT, b"quick\n");
                sleep(PACE / 2).await;
                7
            },
            &audience,
        )
        .await;
    assert_eq!((answer, heard(audience, source).await), (7, vec![]));
}

#[tokio::test(start_paused = true)]
async fn pieces_come_in_order_and_not_too_often() {
    let (audience, mut source) = audience().await;
    let output = LiveOutput::new(ToolCallId::new());
    let begun = Instant::now();
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
            arrived.push(begun.elapsed());
            let last = deltas.iter().any(|delta| delta.text.ends_with("end"));
            assert!(deltas.len() <= 2, "one of each stream: {deltas:?}");
            if last {
                return;
            }
        }
    };
    tokio::join!(output.tell_while(command, &audience), listen);
    // One in each tenth of a second, and the rest at the end.
    assert!((8..=11).contains(&arrived.len()), "{arrived:?}");
    assert!(arrived[0] >= PACE && arrived[0] < 2 * PACE, "{arrived:?}");
}

#[tokio::test(start_paused = true)]
async fn what_was_not_told_comes_with_the_end() {
    let (audience, source) = audience().await;
    let (call, run) = (ToolCallId::new(), audience.run);
    let output = LiveOutput::new(call);
    let command = async {
        output.write(STDOUT, b"one\n");
        output.write(STDERR, b"two\n");
        sleep(PACE * 3).await;
        output.write(STDOUT, "thr\u{e9}".as_bytes());
        output.write(STDOUT, b"\xe2\x82");
    };
    output.tell_while(command, &audience).await;
    let deltas = heard(audience, source).await;
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
async fn a_flood_is_told_in_part_and_then_no_more() {
    let (audience, source) = audience().await;
    let output = LiveOutput::new(ToolCallId::new());
    let flood = vec![b'y'; 256 * 1024];
    let command = async {
        // Far longer than it takes to tell a mebibyte.
        for _ in 0..200 {
            output.write(STDOUT, &flood);
            let waiting = output.lock().stdout.waiting();
            assert!(waiting <= 64 * 1024, "{waiting}");
            sleep(PACE).await;
        }
    };
    let begun = Instant::now();
    output.tell_while(command, &audience).await;
    assert_eq!(begun.elapsed(), PACE * 200, "nobody waits for those who listen");
    let deltas = heard(audience, source).await;
    assert!(deltas.iter().all(|delta| delta.text.len() <= PIECE_BYTES));
    let told: usize =
        deltas.iter().filter(|delta| delta.kind == DeltaKind::Stdout).map(|it| it.text.len()).sum();
    assert_eq!(told, CALL_BYTES);
    assert!(joined(&deltas, DeltaKind::Stdout).contains('…'));
    let notices: Vec<_> = deltas.iter().filter(|delta| delta.kind == DeltaKind::Notice).collect();
    assert_eq!((notices.len(), notices[0].text.as_str()), (1, NOTICE));
    assert_eq!(deltas.last().map(|delta| delta.kind), Some(DeltaKind::Notice));
    assert_eq!(output.lock().stdout.waiting(), 0);
}

#[test]
fn characters_are_not_cut_and_what_is_none_is_shown_as_such() {
    let all = "a\u{e9}\u{20ac}\u{1f40e}z".as_bytes();
    for size in 1..=all.len() {
        let mut strand = Strand::default();
        all.chunks(size).for_each(|chunk| strand.push(chunk));
        assert_eq!(strand.take(100), Some((0, "a\u{e9}\u{20ac}\u{1f40e}z".to_owned())), "{size}");
    }
    let bad = b"a\xff\xc3b\0\xf0\x9f";
    for size in 1..=bad.len() {
        let mut strand = Strand::default();
        bad.chunks(size).for_each(|chunk| strand.push(chunk));
        strand.end();
        let whole = String::from_utf8_lossy(bad).replace('\0', "\u{fffd}");
        assert_eq!(strand.take(100), Some((0, whole)), "{size}");
    }
    let mut strand = Strand::default();
    strand.push("x\u{1f40e}y".as_bytes());
    let mut taken = Vec::new();
    while let Some(piece) = strand.take(4) {
        taken.push(piece);
    }
    assert_eq!(taken, [(0, "x".to_owned()), (1, "\u{1f40e}".to_owned()), (5, "y".to_owned())]);
}

#[test]
fn a_hole_is_seen_in_the_offsets() {
    let mut strand = Strand::default();
    strand.push("\u{20ac}".repeat(30_000).as_bytes());
    strand.push(b"lost too");
    let mut end = 0;
    while let Some((offset, text)) = strand.take(PIECE_BYTES) {
        assert_eq!(offset, end);
        assert!(text.chars().all(|c| c == '\u{20ac}'));
        end += text.len() as u64;
    }
    assert!((60_000..=64 * 1024).contains(&end), "{end}");
    strand.push(b"again");
    assert_eq!(strand.take(100), Some((90_000 + 8, "again".to_owned())));
}
