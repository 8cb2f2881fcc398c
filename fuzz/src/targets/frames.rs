//! Frames between worker, supervisor and copier. A hostile command may write them.

use std::fmt::Debug;

use remuda_supervisor::{
    Decoder, Frame, FromCopier, FromSupervisor, Malformed, Message, ToCopier, ToSupervisor,
};

use super::{Target, kind};

pub(super) const SUPERVISOR: Target = Target {
    name: "supervisor-frames",
    run: |bytes| check::<FromSupervisor>(bytes) ^ check::<ToSupervisor>(bytes).rotate_left(1),
    dictionary: &["{\"", "\":", "null", "true", "exited", "status", "\0\0\0\0", "\0\0\0\u{1}"],
    inputs: 3_000,
};
pub(super) const COPIER: Target = Target {
    name: "copier-frames",
    run: |bytes| check::<FromCopier>(bytes) ^ check::<ToCopier>(bytes).rotate_left(1),
    dictionary: &["\0\0\0\0", "\0\0\0\u{1}", "../", "/", "a/b"],
    inputs: 3_000,
};

/// Where a stream is cut does not matter, an error stays, and what was read is written as it was read.
fn check<M: Message + Debug + PartialEq>(bytes: &[u8]) -> u64 {
    let (whole, result) = decode::<M>([bytes]);
    let (cut, result_of_cut) = decode::<M>(bytes.chunks(3));
    assert_eq!((&whole, result), (&cut, result_of_cut), "frames depend on where the stream is cut");
    for frame in &whole {
        let (again, result) = decode::<M>([frame.to_bytes().as_slice()]);
        assert_eq!(
            (again.as_slice(), result),
            (std::slice::from_ref(frame), Ok(())),
            "a frame changes when written"
        );
    }
    kind((whole.iter().map(|frame| frame.message.kind()).collect::<Vec<_>>(), result))
}

fn decode<'a, M: Message + Debug + PartialEq>(
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<Frame<M>>, Result<(), Malformed>) {
    let (mut decoder, mut frames) = (Decoder::default(), Vec::new());
    for piece in pieces {
        decoder.push(piece);
        loop {
            match decoder.next::<M>() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(malformed) => {
                    assert_eq!(decoder.next::<M>(), Err(malformed), "an error goes away");
                    return (frames, Err(malformed));
                }
            }
        }
    }
    (frames, Ok(()))
}
