//! Live output of a running command.

use std::fmt;

/// One of a command's two output streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputStream {
    Stdout,
    Stderr,
}

/// Receives a command's output while it runs.
pub trait OutputSink: fmt::Debug + Send + Sync {
    /// Receives the next bytes of a stream. Chunks may end anywhere, even within a character.
    ///
    /// Must not block: that would hold up the command's output. A sink that cannot keep up drops chunks; the
    /// result of the command carries the output anyway.
    fn write(&self, stream: OutputStream, chunk: &[u8]);
}

/// Discards the output.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoOutput;

impl OutputSink for NoOutput {
    fn write(&self, _stream: OutputStream, _chunk: &[u8]) {}
}
