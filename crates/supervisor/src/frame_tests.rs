use std::time::Duration;

use super::*;
use crate::{
    Confinement, End, ExitStatus, FromSupervisor, Limits, Program, Refusal, RefusalKind, Request,
    ToSupervisor, User,
};

fn request() -> Request {
    Request {
        program: Program::Shell { shell: None, script: "echo \"ä\0\"".to_owned() },
        cwd: Some("/w".to_owned()),
        env: vec![("A".to_owned(), "b=c".to_owned())],
        has_input: true,
        limits: Limits { memory_bytes: Some(u64::MAX), ..Limits::default() },
        user: Some(User { uid: 1000, gid: 100 }),
        file_capabilities: true,
        confinement: Some(Confinement::Files {
            readable: vec!["/r".to_owned()],
            writable: vec!["/w".to_owned()],
            network: false,
        }),
        grace_ms: 500,
    }
}

fn to_supervisor() -> Vec<ToSupervisor> {
    vec![
        ToSupervisor::Start(Box::new(request())),
        ToSupervisor::Input(b"\0\xff".to_vec()),
        ToSupervisor::Input(Vec::new()),
        ToSupervisor::FeedWatchdog(Duration::from_millis(1500)),
        ToSupervisor::Stop,
        ToSupervisor::Kill,
    ]
}

fn from_supervisor() -> Vec<FromSupervisor> {
    let status = ExitStatus::Signalled(9);
    vec![
        FromSupervisor::Ready,
        FromSupervisor::Stdout(b"out".to_vec()),
        FromSupervisor::Stderr(Vec::new()),
        FromSupervisor::Refused(Refusal { kind: RefusalKind::Other, detail: "why".to_owned() }),
        FromSupervisor::Ended(End { status, cpu_ms: 1, max_rss_kib: 2, left_behind: 3, out_of_memory: true }),
    ]
}

/// Encodes the frames and decodes them again from chunks of `size` bytes.
fn round_trip<M: Message>(frames: &[Frame<M>], size: usize) -> Vec<Frame<M>> {
    let mut bytes = Vec::new();
    frames.iter().for_each(|frame| frame.encode(&mut bytes));
    let (mut decoder, mut read) = (Decoder::default(), Vec::new());
    for chunk in bytes.chunks(size) {
        decoder.push(chunk);
        while let Some(frame) = decoder.next().unwrap() {
            read.push(frame);
        }
    }
    read
}

#[test]
fn frames_survive_any_chunking() {
    fn frames<M>(messages: Vec<M>) -> Vec<Frame<M>> {
        (0..)
            .map(|number| u32::MAX - number)
            .zip(messages)
            .map(|(channel, message)| Frame { channel, message })
            .collect()
    }
    let (to, from) = (frames(to_supervisor()), frames(from_supervisor()));
    for size in [1, 2, 8, 9, 10, 1000] {
        assert_eq!(round_trip(&to, size), to);
        assert_eq!(round_trip(&from, size), from);
    }
}

#[test]
fn invalid_frames_are_malformed() {
    let malformed = |bytes: &[u8]| {
        let mut decoder = Decoder::default();
        decoder.push(bytes);
        let first = decoder.next::<ToSupervisor>();
        assert_eq!(decoder.next::<ToSupervisor>(), first);
        first
    };
    let frame = |kind: u8, length: u32, payload: &[u8]| {
        [&[0, 0, 0, 0, kind], &length.to_be_bytes()[..], payload].concat()
    };
    assert_eq!(malformed(&frame(b'?', 0, b"")), Err(Malformed));
    assert_eq!(malformed(&frame(b'f', 1, b"x")), Err(Malformed));
    assert_eq!(malformed(&frame(b's', 2, b"{}")), Err(Malformed));
    // An oversized length is rejected before the payload has arrived.
    assert_eq!(malformed(&frame(b'i', 4 * 1024 * 1024 + 1, b"")), Err(Malformed));
    assert_eq!(malformed(&frame(b'i', 4 * 1024 * 1024, b"")), Ok(None));
    assert_eq!(malformed(b""), Ok(None));
}

#[test]
fn unbounded_watchdog_time_is_clamped() {
    let frame = Frame { channel: 0, message: ToSupervisor::FeedWatchdog(Duration::MAX) };
    assert_eq!(
        round_trip(&[frame], 5)[0].message,
        ToSupervisor::FeedWatchdog(Duration::from_millis(u64::MAX))
    );
}
