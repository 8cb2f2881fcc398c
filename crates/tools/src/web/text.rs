//! Decodes response bodies to text.

use encoding_rs::{Encoding, UTF_8};
use reqwest::Url;

use super::html;

/// Range in which a page's `<meta charset>` is searched.
const META_BYTES: usize = 1024;

/// The declared media type of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MediaType {
    /// `text/html`, in lower case; empty if not declared.
    pub(crate) name: String,
    charset: Option<String>,
}

/// The text of a response body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Document {
    pub(crate) title: Option<String>,
    pub(crate) text: String,
    /// Text was omitted.
    pub(crate) truncated: bool,
}

impl MediaType {
    pub(crate) fn parse(header: &str) -> Self {
        let mut parts = header.split(';');
        let name: String =
            parts.next().unwrap_or_default().trim().to_ascii_lowercase().chars().take(100).collect();
        let charset = parts.find_map(|part| {
            let (key, value) = part.split_once('=')?;
            key.trim().eq_ignore_ascii_case("charset").then(|| value.trim().trim_matches('"').to_owned())
        });
        Self { name, charset }
    }

    fn is_html(&self) -> bool {
        matches!(self.name.as_str(), "text/html" | "application/xhtml+xml")
    }

    /// Whether the body may be text. An undeclared type may be.
    pub(crate) fn may_be_text(&self) -> bool {
        let name = self.name.as_str();
        name.is_empty()
            || name.starts_with("text/")
            || name.ends_with("+json")
            || name.ends_with("+xml")
            || matches!(
                name,
                "application/json"
                    | "application/xml"
                    | "application/javascript"
                    | "application/ecmascript"
                    | "application/x-ndjson"
                    | "application/yaml"
                    | "application/x-yaml"
                    | "application/toml"
                    | "application/x-sh"
                    | "application/graphql"
            )
    }
}

impl Document {
    /// Decodes a body. `None` if it is not text after all.
    pub(crate) fn read(media_type: &MediaType, bytes: &[u8], url: &Url, max_chars: usize) -> Option<Self> {
        if media_type.name.is_empty() && bytes.iter().take(META_BYTES).any(|byte| *byte == 0) {
            return None;
        }
        let text = decode(media_type, bytes);
        if media_type.is_html() {
            return Some(html::to_text(&text, url, max_chars));
        }
        let (text, truncated) = truncate_chars(&text, max_chars);
        Some(Self { title: None, text: text.replace('\0', "\u{fffd}"), truncated })
    }
}

/// Encoding precedence: byte order mark, server header, page declaration, UTF-8.
fn decode(media_type: &MediaType, bytes: &[u8]) -> String {
    let declared = media_type.charset.as_deref().and_then(|label| Encoding::for_label(label.as_bytes()));
    let in_page = || if media_type.is_html() { meta_charset(bytes) } else { None };
    declared.or_else(in_page).unwrap_or(UTF_8).decode(bytes).0.into_owned()
}

/// The encoding declared in `<meta charset=…>` or its older form.
fn meta_charset(bytes: &[u8]) -> Option<&'static Encoding> {
    let start = String::from_utf8_lossy(&bytes[..bytes.len().min(META_BYTES)]).to_ascii_lowercase();
    let (_, rest) = start.split_once("<meta")?;
    let (_, label) = rest.split_once("charset=")?;
    let label = label.trim_start_matches(['"', '\'', ' ']);
    let end = label.find(|c: char| !c.is_ascii_alphanumeric() && !"-_:.".contains(c)).unwrap_or(label.len());
    // A page whose ASCII was readable is not UTF-16, whatever it declares.
    Encoding::for_label(&label.as_bytes()[..end]).filter(|encoding| encoding.is_ascii_compatible())
}

/// Truncates to `max_chars`. Also returns whether text was cut.
pub(crate) fn truncate_chars(text: &str, max_chars: usize) -> (&str, bool) {
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => (&text[..end], true),
        None => (text, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(content_type: &str, bytes: &[u8]) -> Option<String> {
        let url = Url::parse("https://example.org/").unwrap();
        Document::read(&MediaType::parse(content_type), bytes, &url, 100).map(|document| document.text)
    }

    #[test]
    fn bodies_are_decoded_by_declared_or_default_charset() {
        for (content_type, bytes, text) in [
            ("text/plain", "é".as_bytes(), "é"),
            ("text/plain; charset=ISO-8859-1", b"caf\xe9", "café"),
            ("text/plain; charset=\"windows-1252\"", b"\x80", "€"),
            ("text/plain; charset=shift_jis", b"\x82\xa0", "あ"),
            // Wrong or unknown charsets: readable parts are kept.
            ("text/plain; charset=utf-8", b"caf\xe9", "caf\u{fffd}"),
            ("text/plain; charset=klingon", "é".as_bytes(), "é"),
            ("text/plain; charset=iso-8859-1", b"\xef\xbb\xbf\xc3\xa9", "é"),
            ("text/html", b"<meta charset='latin1'>caf\xe9", "café"),
            ("text/html", b"<meta http-equiv=x content='text/html; charset=iso-8859-1'>\xe9", "é"),
            ("text/html", "<meta charset=utf-16>é".as_bytes(), "é"),
            ("", b"plain", "plain"),
            ("application/json", b"{\"a\":\"\0\"}", "{\"a\":\"\u{fffd}\"}"),
        ] {
            assert_eq!(read(content_type, bytes).as_deref(), Some(text), "{content_type}");
        }
        assert_eq!(read("", b"\x7fELF\0\0"), None);
    }

    #[test]
    fn text_media_types_are_recognized() {
        for name in [
            "",
            "text/csv",
            "Text/HTML; charset=x",
            "application/json",
            "application/ld+json",
            "image/svg+xml",
        ] {
            assert!(MediaType::parse(name).may_be_text(), "{name}");
        }
        for name in [
            "image/png",
            "application/octet-stream",
            "application/pdf",
            "video/mp4",
            "application/zip",
            "nonsense",
        ] {
            assert!(!MediaType::parse(name).may_be_text(), "{name}");
        }
    }

    #[test]
    fn long_text_is_cut_at_character_boundaries() {
        assert_eq!(truncate_chars("aéb", 2), ("aé", true));
        assert_eq!(truncate_chars("aéb", 3), ("aéb", false));
        assert_eq!(truncate_chars("", 0), ("", false));
    }
}
