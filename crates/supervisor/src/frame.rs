//! Frame encoding: a header of channel, kind and length, then the payload.

use std::fmt;

/// Channel (4 bytes, big endian), kind (1), length of the payload (4, big endian).
pub const HEADER_BYTES: usize = 9;
/// A larger frame is malformed. Output frames are far smaller; a request contains a script.
pub const MAX_PAYLOAD_BYTES: usize = 4 * 1024 * 1024;

/// One message of one command. A stream that serves a single command uses channel 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame<M> {
    pub channel: u32,
    pub message: M,
}

/// A message that can be sent in a frame.
pub trait Message: Sized {
    fn kind(&self) -> u8;
    /// Appends the payload.
    fn write(&self, payload: &mut Vec<u8>);
    fn read(kind: u8, payload: &[u8]) -> Result<Self, Malformed>;
}

/// The bytes are not a frame of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected a frame of the supervisor's protocol")
    }
}

impl std::error::Error for Malformed {}

impl<M: Message> Frame<M> {
    /// Appends the frame's bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.channel.to_be_bytes());
        out.push(self.message.kind());
        let length_at = out.len();
        out.extend_from_slice(&[0; 4]);
        self.message.write(out);
        let length = u32::try_from(out.len() - length_at - 4).unwrap_or(u32::MAX);
        out[length_at..length_at + 4].copy_from_slice(&length.to_be_bytes());
    }

    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.encode(&mut bytes);
        bytes
    }
}

/// Decodes frames from a byte stream that may be split at any point.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// Offset of the next frame in `buffer`.
    at: usize,
}

impl Decoder {
    pub fn push(&mut self, bytes: &[u8]) {
        // Consumed bytes are dropped only here, so that decoding many small frames moves no memory.
        if self.at > 0 {
            self.buffer.drain(..self.at);
            self.at = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next complete frame, if any. After [`Malformed`], every further call returns the same
    /// error.
    #[expect(clippy::should_implement_trait, reason = "it can fail, and is generic over the message type")]
    pub fn next<M: Message>(&mut self) -> Result<Option<Frame<M>>, Malformed> {
        let rest = &self.buffer[self.at..];
        let Some((header, rest)) = rest.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let [c0, c1, c2, c3, kind, l0, l1, l2, l3] = *header;
        let length = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
        if length > MAX_PAYLOAD_BYTES {
            return Err(Malformed);
        }
        let Some(payload) = rest.get(..length) else { return Ok(None) };
        let message = M::read(kind, payload)?;
        self.at += HEADER_BYTES + length;
        Ok(Some(Frame { channel: u32::from_be_bytes([c0, c1, c2, c3]), message }))
    }
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
