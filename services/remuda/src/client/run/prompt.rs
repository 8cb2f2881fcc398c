//! Reads the message to an agent: text from the command line or stdin, and images.

use std::{
    fs::File,
    io::{self, IsTerminal as _, Read},
    path::{Path, PathBuf},
};

use remuda_domain::{Code, Error, error::Result, limits};
use remuda_proto::v1;

/// The text of the message. Reads stdin for `-`, or if there is neither text nor image and stdin is a pipe.
pub(super) fn text(given: Option<String>, has_images: bool) -> Result<String> {
    match given {
        Some(text) if text == "-" => read_text(&mut io::stdin().lock()),
        Some(text) => non_empty(text),
        None if has_images => Ok(String::new()),
        None if io::stdin().is_terminal() => Err(missing()),
        None => read_text(&mut io::stdin().lock()),
    }
}

fn missing() -> Error {
    Error::invalid("text", "expected a message, as in `remuda run \"fix the tests\"`, or --tool")
}

fn non_empty(text: String) -> Result<String> {
    if text.trim().is_empty() { Err(missing()) } else { Ok(text) }
}

fn read_text(from: &mut dyn Read) -> Result<String> {
    let bytes = read(from, "text", "stdin")?;
    let text = String::from_utf8(bytes).map_err(|_| Error::invalid("text", "expected UTF-8 on stdin"))?;
    non_empty(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// Reads at most the size limit of a message.
fn read(from: &mut dyn Read, field: &str, name: &str) -> Result<Vec<u8>> {
    let limit = limits::MAX_INPUT_BYTES;
    let mut bytes = Vec::new();
    let most = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    from.take(most)
        .read_to_end(&mut bytes)
        .map_err(|error| Error::invalid(field, format!("cannot read {name}: {error}")))?;
    if bytes.len() > limit {
        return Err(Error::new(Code::TooLarge, format!("{name} has more than {limit} bytes")).at(field));
    }
    Ok(bytes)
}

/// Reads images. Their types come from the content, not from the file names.
pub(super) fn images(files: &[PathBuf]) -> Result<Vec<v1::Image>> {
    files.iter().map(|file| image(file)).collect()
}

fn image(file: &Path) -> Result<v1::Image> {
    let name = file.display().to_string();
    let failed = |error: io::Error| Error::invalid("attach", format!("cannot read {name}: {error}"));
    let mut opened = File::open(file).map_err(failed)?;
    let data = read(&mut opened, "attach", &name)?;
    let media_type = media_type(&data).ok_or_else(|| {
        Error::invalid("attach", format!("{name} is not an image: expected png, jpeg, gif or webp"))
    })?;
    Ok(v1::Image { media_type: media_type.to_owned(), data, url: String::new() })
}

fn media_type(bytes: &[u8]) -> Option<&'static str> {
    let kinds: [(&[u8], &str); 4] = [
        (b"\x89PNG\r\n\x1a\n", "image/png"),
        (b"\xff\xd8\xff", "image/jpeg"),
        (b"GIF87a", "image/gif"),
        (b"GIF89a", "image/gif"),
    ];
    let known = kinds.into_iter().find(|(magic, _)| bytes.starts_with(magic)).map(|(_, name)| name);
    let webp = bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP");
    known.or(webp.then_some("image/webp"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_from_the_argument_or_stdin() {
        assert_eq!(text(Some("hi".into()), false).unwrap(), "hi");
        assert_eq!(text(None, true).unwrap(), "");
        assert_eq!(text(Some(" ".into()), false).unwrap_err().field(), Some("text"));
        assert_eq!(read_text(&mut &b"two\nlines\n"[..]).unwrap(), "two\nlines");
        assert_eq!(read_text(&mut &b"\n"[..]).unwrap_err().code(), Code::InvalidArgument);
        assert_eq!(read_text(&mut &b"\xff"[..]).unwrap_err().code(), Code::InvalidArgument);
        let endless = read_text(&mut io::repeat(b'x')).unwrap_err();
        assert_eq!((endless.code(), endless.field()), (Code::TooLarge, Some("text")));
    }

    #[test]
    fn image_type_is_detected_from_the_content() {
        assert_eq!(media_type(b"\x89PNG\r\n\x1a\n...."), Some("image/png"));
        assert_eq!(media_type(b"\xff\xd8\xff\xe0"), Some("image/jpeg"));
        assert_eq!(media_type(b"GIF89a"), Some("image/gif"));
        assert_eq!(media_type(b"RIFF\0\0\0\0WEBPVP8 "), Some("image/webp"));
        for other in [&b"RIFF\0\0\0\0WAVE"[..], b"", b"<svg>", b"GIF8"] {
            assert_eq!(media_type(other), None);
        }
        let missing = images(&[PathBuf::from("/nowhere/x.png")]).unwrap_err();
        assert_eq!(missing.field(), Some("attach"));
    }
}
