//! What a file is, by how it begins.

/// Where to look for signs of a binary file.
const SNIFF_BYTES: usize = 8 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    /// By its media type.
    Image(&'static str),
    /// In words.
    Binary(&'static str),
}

impl Kind {
    pub(super) fn of(bytes: &[u8]) -> Self {
        const KNOWN: [(&[u8], Kind); 9] = [
            (b"\x89PNG\r\n\x1a\n", Kind::Image("image/png")),
            (b"\xff\xd8\xff", Kind::Image("image/jpeg")),
            (b"GIF8", Kind::Image("image/gif")),
            (b"%PDF-", Kind::Binary("a PDF document")),
            (b"PK\x03\x04", Kind::Binary("a ZIP archive")),
            (b"\x1f\x8b", Kind::Binary("a gzip archive")),
            (b"\x7fELF", Kind::Binary("an ELF binary")),
            (b"\xff\xfe", Kind::Binary("a UTF-16 file")),
            (b"\xfe\xff", Kind::Binary("a UTF-16 file")),
        ];
        if let Some((_, kind)) = KNOWN.iter().find(|(magic, _)| bytes.starts_with(magic)) {
            return *kind;
        }
        if bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
            return Self::Image("image/webp");
        }
        let is_binary = bytes.iter().take(SNIFF_BYTES).any(|byte| *byte == 0);
        if is_binary { Self::Binary("a binary file") } else { Self::Text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_told_by_the_first_bytes() {
        assert_eq!(Kind::of(b""), Kind::Text);
        assert_eq!(Kind::of(b"GIF89a"), Kind::Image("image/gif"));
        assert_eq!(Kind::of(b"RIFF\0\0\0\0WEBPVP8 "), Kind::Image("image/webp"));
        assert_eq!(Kind::of(b"RIFF\0\0\0\0WAVE"), Kind::Binary("a binary file"));
        assert_eq!(Kind::of(b"\xff\xfeh\0i\0"), Kind::Binary("a UTF-16 file"));
        assert_eq!(Kind::of(b"caf\xe9"), Kind::Text);
        assert_eq!(Kind::of(&[vec![b'x'; 9000], vec![0]].concat()), Kind::Text);
    }
}
