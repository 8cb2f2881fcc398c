//! One stream of output between the command and those who watch.

/// What may wait to be told. What comes faster than it is told is left out beyond this.
const PENDING_BYTES: usize = 64 * 1024;

/// Text that waits to be told, without a hole in it.
#[derive(Debug, Default)]
pub(super) struct Strand {
    text: String,
    /// Bytes before the text that waits: told, or left out.
    offset: u64,
    /// The beginning of a character whose rest has not come yet.
    begun: Vec<u8>,
    /// Bytes behind the text that are left out. Until it is told, all that follows is too, so that a hole is one.
    left_out: u64,
}

impl Strand {
    /// Takes what was printed, cut anywhere. The work is bounded by the room there is, not by what is printed.
    pub(super) fn push(&mut self, chunk: &[u8]) {
        if self.left_out > 0 {
            self.left_out += length(chunk);
            return;
        }
        let room = PENDING_BYTES.saturating_sub(self.text.len() + self.begun.len());
        let (taken, rest) = chunk.split_at(chunk.len().min(room));
        self.decode(taken);
        if !rest.is_empty() {
            self.left_out = length(&std::mem::take(&mut self.begun)) + length(rest);
        }
    }

    /// Nothing more comes: half a character stays half.
    pub(super) fn end(&mut self) {
        if !std::mem::take(&mut self.begun).is_empty() {
            self.text.push(char::REPLACEMENT_CHARACTER);
        }
    }

    /// Up to so many bytes of the text, and how many came before.
    pub(super) fn take(&mut self, most: usize) -> Option<(u64, String)> {
        let cut = self.text.floor_char_boundary(most);
        if cut == 0 {
            return None;
        }
        let rest = self.text.split_off(cut);
        let (offset, text) = (self.offset, std::mem::replace(&mut self.text, rest));
        self.offset += length(text.as_bytes());
        if self.text.is_empty() {
            self.offset += std::mem::take(&mut self.left_out);
        }
        Some((offset, text))
    }

    /// Bytes that wait to be told.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.text.len() + self.begun.len()
    }

    /// Appends bytes as the result will show them: what is no UTF-8, and NUL, as U+FFFD.
    fn decode(&mut self, bytes: &[u8]) {
        let joined;
        let bytes = if self.begun.is_empty() {
            bytes
        } else {
            joined = [&std::mem::take(&mut self.begun), bytes].concat();
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
            if chunks.peek().is_none() && is_begun(chunk.invalid()) {
                self.begun = chunk.invalid().to_vec();
            } else {
                self.text.push(char::REPLACEMENT_CHARACTER);
            }
        }
    }
}

/// Whether what is no character could become one.
fn is_begun(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}
