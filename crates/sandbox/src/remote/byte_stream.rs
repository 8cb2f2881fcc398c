//! The byte stream between this process and the first process of an instance.

use std::fmt;

use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, BufReader};

/// Size of the read buffer of a stream that has none. Output comes in chunks of at most this size.
const BUFFER_BYTES: usize = 64 * 1024;

/// Both directions of a byte stream. Dropping it closes both.
pub struct ByteStream {
    pub(super) output: Box<dyn AsyncBufRead + Send + Unpin>,
    pub(super) input: Box<dyn AsyncWrite + Send + Unpin>,
}

impl ByteStream {
    /// `output` is what the first process writes, and `input` is what it reads.
    pub fn new(
        output: impl AsyncRead + Send + Unpin + 'static,
        input: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Self {
        Self::buffered(BufReader::with_capacity(BUFFER_BYTES, output), input)
    }

    /// For a stream that arrives in chunks already: they are decoded in place, without a copy.
    pub fn buffered(
        output: impl AsyncBufRead + Send + Unpin + 'static,
        input: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Self {
        Self { output: Box::new(output), input: Box::new(input) }
    }
}

impl fmt::Debug for ByteStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByteStream").finish_non_exhaustive()
    }
}
