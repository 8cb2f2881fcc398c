//! Output as it comes.

use std::fmt;

/// Which of a command's two streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputStream {
    Stdout,
    Stderr,
}

/// Sees a command's output while it runs.
pub trait OutputSink: fmt::Debug + Send + Sync {
    /// Takes the next bytes of a stream, cut anywhere, also within a character.
    ///
    /// Must not block: the command's output waits meanwhile. A sink that cannot keep up drops; the result of the
    /// command carries the output anyway.
    fn write(&self, stream: OutputStream, chunk: &[u8]);
}

/// Nobody is watching.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoOutput;

impl OutputSink for NoOutput {
    fn write(&self, _stream: OutputStream, _chunk: &[u8]) {}
}
