//! An HTTP/1.1 response, taken apart as it comes.
//!
//! Ten thousand readers beside the server that is measured must cost next to nothing: what is kept of a response is a few
//! numbers and the line that has not come to its end.

use anyhow::{Context as _, Result, bail, ensure};

/// Heads and sizes of chunks are short.
const MAX_LINE: usize = 16 * 1024;

#[derive(Debug, Default)]
pub(super) struct Response {
    stage: Stage,
    /// The beginning of a line.
    line: Vec<u8>,
    status: Option<u16>,
    length: Length,
}

#[derive(Debug, Default)]
enum Stage {
    #[default]
    Status,
    Headers,
    ChunkSize,
    /// So much of a chunk is still to come.
    Chunk(u64),
    ChunkEnd,
    Trailers,
    /// So much of a body without chunks is still to come.
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
    /// Takes the next bytes and gives `body` what is left of them.
    pub(super) fn feed(&mut self, mut bytes: &[u8], mut body: impl FnMut(&[u8])) -> Result<()> {
        while !bytes.is_empty() {
            match self.stage {
                Stage::Chunk(left) | Stage::Plain(left) => {
                    let size = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                    let (now, later) = bytes.split_at(size);
                    body(now);
                    bytes = later;
                    self.pass(left - size as u64);
                }
                Stage::Over => bail!("{} bytes came after the end of the response", bytes.len()),
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
        self.status.filter(|_| !matches!(self.stage, Stage::Headers))
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

    fn pass(&mut self, left: u64) {
        self.stage = match self.stage {
            Stage::Chunk(_) if left > 0 => Stage::Chunk(left),
            Stage::Chunk(_) => Stage::ChunkEnd,
            _ if left > 0 => Stage::Plain(left),
            _ => Stage::Over,
        };
    }

    /// A whole line without its end; `None` while it has none.
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
        match self.stage {
            Stage::Status => {
                let status = line.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
                self.status = Some(status.with_context(|| format!("expected a status line, got {line:?}"))?);
                self.stage = Stage::Headers;
            }
            Stage::Headers if line.is_empty() => {
                self.stage = match self.length {
                    Length::Chunked => Stage::ChunkSize,
                    Length::Known(0) | Length::None => Stage::Over,
                    Length::Known(length) => Stage::Plain(length),
                };
            }
            Stage::Headers => {
                let (name, value) = line.split_once(':').with_context(|| format!("no header: {line:?}"))?;
                let value = value.trim();
                if name.eq_ignore_ascii_case("content-length") {
                    self.length = Length::Known(value.parse().context("content-length is no number")?);
                } else if name.eq_ignore_ascii_case("transfer-encoding") {
                    ensure!(value.eq_ignore_ascii_case("chunked"), "unknown transfer-encoding {value:?}");
                    self.length = Length::Chunked;
                }
            }
            Stage::ChunkSize => {
                let digits = line.split(';').next().unwrap_or_default().trim();
                let size = u64::from_str_radix(digits, 16);
                self.stage = match size.with_context(|| format!("no size of a chunk: {line:?}"))? {
                    0 => Stage::Trailers,
                    size => Stage::Chunk(size),
                };
            }
            Stage::ChunkEnd => {
                ensure!(line.is_empty(), "a chunk is longer than it says");
                self.stage = Stage::ChunkSize;
            }
            Stage::Trailers if line.is_empty() => self.stage = Stage::Over,
            Stage::Trailers | Stage::Chunk(_) | Stage::Plain(_) | Stage::Over => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNKED: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n\
                           5\r\nabc\r\n\r\n1a;x=y\r\nabcdefghijklmnopqrstuvwxyz\r\n0\r\n\r\n";

    /// Feeds it in pieces of this size.
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
    fn a_refusal_has_a_length() {
        let text = "HTTP/1.1 416 Range Not Satisfiable\r\ncontent-length: 4\r\n\r\nfull";
        let (response, body) = read(text, 3).unwrap();
        assert_eq!((response.status(), response.is_over(), body.as_str()), (Some(416), true, "full"));
        let (response, body) = read("HTTP/1.1 204 No Content\r\n\r\n", 3).unwrap();
        assert_eq!((response.status(), response.is_over(), body.as_str()), (Some(204), true, ""));
    }

    #[test]
    fn the_status_is_known_when_the_head_is_complete() {
        let (mut response, _) = read("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n", 100).unwrap();
        assert_eq!(response.status(), None);
        response.feed(b"\r\n", |_| {}).unwrap();
        assert_eq!((response.status(), response.is_over()), (Some(200), false));
    }

    #[test]
    fn nonsense_is_an_error() {
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
