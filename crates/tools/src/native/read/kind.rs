//! Detects the kind of a file by its first bytes.

/// Range that is checked for NUL bytes.
const SNIFF_BYTES: usize = 8 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContentKind {
    Text,
    /// With its media type.
    Image(&'static str),
    /// With a description.
    Binary(&'static str),
}

impl ContentKind {
    pub(super) fn of(bytes: &[u8]) -> Self {
        const KNOWN: [(&[u8], ContentKind); 9] = [
            (b"\x89PNG\r\n\x1a\n", ContentKind::Image("image/png")),
            (b"\xff\xd8\xff", ContentKind::Image("image/jpeg")),
            (b"GIF8", ContentKind::Image("image/gif")),
            (b"%PDF-", ContentKind::Binary("a PDF document")),
            (b"PK\x03\x04", ContentKind::Binary("a ZIP archive")),
            (b"\x1f\x8b", ContentKind::Binary("a gzip archive")),
            (b"\x7fELF", ContentKind::Binary("an ELF binary")),
            (b"\xff\xfe", ContentKind::Binary("a UTF-16 file")),
            (b"\xfe\xff", ContentKind::Binary("a UTF-16 file")),
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
    fn kind_is_detected_by_the_first_bytes() {
        assert_eq!(ContentKind::of(b""), ContentKind::Text);
        assert_eq!(ContentKind::of(b"GIF89a"), ContentKind::Image("image/gif"));
        assert_eq!(ContentKind::of(b"RIFF\0\0\0\0WEBPVP8 "), ContentKind::Image("image/webp"));
        assert_eq!(ContentKind::of(b"RIFF\0\0\0\0WAVE"), ContentKind::Binary("a binary file"));
        assert_eq!(ContentKind::of(b"\xff\xfeh\0i\0"), ContentKind::Binary("a UTF-16 file"));
        assert_eq!(ContentKind::of(b"caf\xe9"), ContentKind::Text);
        assert_eq!(ContentKind::of(&[vec![b'x'; 9000], vec![0]].concat()), ContentKind::Text);
    }
}
