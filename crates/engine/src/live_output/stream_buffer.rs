//! A bounded buffer of one output stream, between the command and the publisher.

/// Maximum bytes in the buffer. Output that arrives faster than it is published is dropped beyond this.
pub(super) const MAX_BUFFERED_BYTES: usize = 64 * 1024;

/// Contiguous text that was not published yet.
#[derive(Debug, Default)]
pub(super) struct StreamBuffer {
    text: String,
    /// Stream offset of the buffered text.
    offset: u64,
    /// The first bytes of a character that is incomplete.
    partial_char: Vec<u8>,
    /// Bytes dropped after the buffered text. Until that text is taken, all output is dropped, so that there is only
    /// one gap.
    dropped: u64,
}

impl StreamBuffer {
    /// Appends output, cut at any byte. The work is bounded by the free space, not by the size of the output.
    pub(super) fn push(&mut self, chunk: &[u8]) {
        if self.dropped > 0 {
            self.dropped += length(chunk);
            return;
        }
        let free = MAX_BUFFERED_BYTES.saturating_sub(self.text.len() + self.partial_char.len());
        let (taken, rest) = chunk.split_at(chunk.len().min(free));
        self.decode(taken);
        if !rest.is_empty() {
            self.dropped = length(&std::mem::take(&mut self.partial_char)) + length(rest);
        }
    }

    /// Marks the end of the stream: an incomplete character becomes U+FFFD.
    pub(super) fn end(&mut self) {
        if !std::mem::take(&mut self.partial_char).is_empty() {
            self.text.push(char::REPLACEMENT_CHARACTER);
        }
    }

    /// Takes at most `most` bytes of text, with their stream offset.
    pub(super) fn take(&mut self, most: usize) -> Option<(u64, String)> {
        let cut = self.text.floor_char_boundary(most);
        if cut == 0 {
            return None;
        }
        let rest = self.text.split_off(cut);
        let (offset, text) = (self.offset, std::mem::replace(&mut self.text, rest));
        self.offset += length(text.as_bytes());
        if self.text.is_empty() {
            self.offset += std::mem::take(&mut self.dropped);
        }
        Some((offset, text))
    }

    /// Bytes in the buffer.
    #[cfg(test)]
    pub(super) fn buffered_bytes(&self) -> usize {
        self.text.len() + self.partial_char.len()
    }

    /// Appends bytes as the result will show them: NUL and invalid UTF-8 become U+FFFD.
    fn decode(&mut self, bytes: &[u8]) {
        let joined;
        let bytes = if self.partial_char.is_empty() {
            bytes
        } else {
            joined = [&std::mem::take(&mut self.partial_char), bytes].concat();
            &joined
        };
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            if chunk.valid().contains('\0') {
                self.text.push_str(&chunk.valid().replace('\0', "\u{fffd}"));
            } else {
                self.text.push_str(chunk.valid());
            }
            if chunk.invalid().is_empty() {
                continue;
            }
            if chunks.peek().is_none() && is_partial_char(chunk.invalid()) {
                self.partial_char = chunk.invalid().to_vec();
            } else {
                self.text.push(char::REPLACEMENT_CHARACTER);
            }
        }
    }
}

/// Whether invalid bytes could be the beginning of a character.
fn is_partial_char(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}
