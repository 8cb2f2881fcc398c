//! An incremental parser of HTTP/1.1 responses.
//!
//! Ten thousand readers on the machine of the measured server must be cheap: the parser keeps a few numbers and the current
//! incomplete line.

use anyhow::{Context as _, Result, bail, ensure};

/// The longest accepted line of a head or of a chunk size.
const MAX_LINE: usize = 16 * 1024;

#[derive(Debug, Default)]
pub(super) struct Response {
    state: ParseState,
    /// The beginning of an incomplete line.
    line: Vec<u8>,
    status: Option<u16>,
    length: Length,
}

#[derive(Debug, Default)]
enum ParseState {
    #[default]
    Status,
    Headers,
    ChunkSize,
    /// The remaining bytes of a chunk.
    Chunk(u64),
    ChunkEnd,
    Trailers,
    /// The remaining bytes of a body with a content length.
    Plain(u64),
    Over,
}

#[derive(Clone, Copy, Debug, Default)]
enum Length {
    #[default]
    None,
    Known(u64),
    Chunked,
}

impl Response {
    /// Parses the next bytes and passes the body bytes among them to `body`.
    pub(super) fn feed(&mut self, mut bytes: &[u8], mut body: impl FnMut(&[u8])) -> Result<()> {
        while !bytes.is_empty() {
            match self.state {
                ParseState::Chunk(left) | ParseState::Plain(left) => {
                    let size = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                    let (now, later) = bytes.split_at(size);
                    body(now);
                    bytes = later;
                    self.advance(left - size as u64);
                }
                ParseState::Over => bail!("{} bytes came after the end of the response", bytes.len()),
                _ => {
                    let Some(line) = self.take_line(&mut bytes)? else { return Ok(()) };
                    self.read_line(&line)?;
                }
            }
        }
        Ok(())
    }

    /// The status, as soon as the head is complete.
    pub(super) fn status(&self) -> Option<u16> {
        self.status.filter(|_| !matches!(self.state, ParseState::Headers))
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, ParseState::Over)
    }

    fn advance(&mut self, left: u64) {
        self.state = match self.state {
            ParseState::Chunk(_) if left > 0 => ParseState::Chunk(left),
            ParseState::Chunk(_) => ParseState::ChunkEnd,
            _ if left > 0 => ParseState::Plain(left),
            _ => ParseState::Over,
        };
    }

    /// The next complete line without its line break; `None` while it is incomplete.
    fn take_line(&mut self, bytes: &mut &[u8]) -> Result<Option<String>> {
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let (part, rest) = match end {
            Some(end) => (&bytes[..end], &bytes[end + 1..]),
            None => (*bytes, &bytes[bytes.len()..]),
        };
        ensure!(self.line.len() + part.len() <= MAX_LINE, "a line of the response does not end");
        self.line.extend_from_slice(part);
        *bytes = rest;
        if end.is_none() {
            return Ok(None);
        }
        let line = String::from_utf8(std::mem::take(&mut self.line)).context("a line is not UTF-8")?;
        Ok(Some(line.strip_suffix('\r').map(str::to_owned).unwrap_or(line)))
    }

    fn read_line(&mut self, line: &str) -> Result<()> {
        match self.state {
            ParseState::Status => {
                let status = line.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
                self.status = Some(status.with_context(|| format!("expected a status line, got {line:?}"))?);
                self.state = ParseState::Headers;
            }
            ParseState::Headers if line.is_empty() => {
                self.state = match self.length {
                    Length::Chunked => ParseState::ChunkSize,
                    Length::Known(0) | Length::None => ParseState::Over,
                    Length::Known(length) => ParseState::Plain(length),
                };
            }
            ParseState::Headers => {
                let (name, value) =
                    line.split_once(':').with_context(|| format!("expected a header, got {line:?}"))?;
                let value = value.trim();
                if name.eq_ignore_ascii_case("content-length") {
                    self.length = Length::Known(value.parse().context("content-length is not a number")?);
                } else if name.eq_ignore_ascii_case("transfer-encoding") {
                    ensure!(value.eq_ignore_ascii_case("chunked"), "unknown transfer-encoding {value:?}");
                    self.length = Length::Chunked;
                }
            }
            ParseState::ChunkSize => {
                let digits = line.split(';').next().unwrap_or_default().trim();
                let size = u64::from_str_radix(digits, 16);
                self.state = match size.with_context(|| format!("expected a chunk size, got {line:?}"))? {
                    0 => ParseState::Trailers,
                    size => ParseState::Chunk(size),
                };
            }
            ParseState::ChunkEnd => {
                ensure!(line.is_empty(), "a chunk is longer than it says");
                self.state = ParseState::ChunkSize;
            }
            ParseState::Trailers if line.is_empty() => self.state = ParseState::Over,
            ParseState::Trailers | ParseState::Chunk(_) | ParseState::Plain(_) | ParseState::Over => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNKED: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n\
                           5\r\nabc\r\n\r\n1a;x=y\r\nabcdefghijklmnopqrstuvwxyz\r\n0\r\n\r\n";

    /// Feeds the text in pieces of this size.
    fn read(text: &str, size: usize) -> Result<(Response, String)> {
        let (mut response, mut body) = (Response::default(), Vec::new());
        for piece in text.as_bytes().chunks(size) {
            response.feed(piece, |bytes| body.extend_from_slice(bytes))?;
        }
        Ok((response, String::from_utf8(body)?))
    }

    #[test]
    fn pieces_of_any_size_give_the_same_body() {
        for size in 1..=CHUNKED.len() {
            let (response, body) = read(CHUNKED, size).unwrap();
            assert_eq!((response.status(), response.is_over()), (Some(200), true), "{size}");
            assert_eq!(body, "abc\r\nabcdefghijklmnopqrstuvwxyz", "{size}");
        }
    }

    #[test]
    fn body_with_content_length_is_read() {
        let text = "HTTP/1.1 416 Range Not Satisfiable\r\ncontent-length: 4\r\n\r\nfull";
        let (response, body) = read(text, 3).unwrap();
        assert_eq!((response.status(), response.is_over(), body.as_str()), (Some(416), true, "full"));
        let (response, body) = read("HTTP/1.1 204 No Content\r\n\r\n", 3).unwrap();
        assert_eq!((response.status(), response.is_over(), body.as_str()), (Some(204), true, ""));
    }

    #[test]
    fn status_is_known_once_the_head_is_complete() {
        let (mut response, _) = read("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n", 100).unwrap();
        assert_eq!(response.status(), None);
        response.feed(b"\r\n", |_| {}).unwrap();
        assert_eq!((response.status(), response.is_over()), (Some(200), false));
    }

    #[test]
    fn malformed_response_is_an_error() {
        for text in [
            "SSH-2.0-x\r\n",
            "HTTP/1.1 abc\r\n",
            "HTTP/1.1 200 OK\r\nno header\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nab\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nab",
        ] {
            assert!(read(text, 1).is_err(), "{text}");
        }
        assert!(read(&"x".repeat(MAX_LINE + 1), 100).is_err());
    }
}
