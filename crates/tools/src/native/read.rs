//! `Read`: shows a text file with line numbers.

use std::fmt::Write as _;

use async_trait::async_trait;
use remuda_domain::{
    error::{Code, Error, Result},
    tool::Effects,
};
use remuda_sandbox::{ByteRange, path};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    arguments::{field, parse, rename},
    context::ToolContext,
    tool::{CallResult, Tool},
};

/// Larger files are for `Bash`, which can look at a part without reading it all.
const MAX_FILE_BYTES: u64 = 8 * 1024 * 1024;
/// What one call shows, however long the lines are.
const MAX_SHOWN_BYTES: usize = 256 * 1024;
const MAX_LINE_CHARS: usize = 2000;
const DEFAULT_LINES: u64 = 2000;
/// Where to look for signs of a binary file.
const SNIFF_BYTES: usize = 8 * 1024;

#[derive(Clone, Copy, Debug)]
pub struct Read;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    file_path: String,
    /// The first line, from 1.
    offset: Option<u64>,
    limit: Option<u64>,
}

impl Arguments {
    fn parse(arguments: &Value) -> Result<Self> {
        let arguments: Self = parse(arguments)?;
        path::check(&field("file_path"), &arguments.file_path)?;
        for (name, value) in [("offset", arguments.offset), ("limit", arguments.limit)] {
            if value == Some(0) {
                return Err(Error::invalid(field(name), "expected 1 or more"));
            }
        }
        Ok(arguments)
    }
}

#[async_trait]
impl Tool for Read {
    fn name(&self) -> &str {
        "Read"
    }

    fn description(&self) -> &str {
        "Shows a text file of the workspace with line numbers, 2000 lines at a time unless told otherwise."
    }

    fn effects(&self) -> Effects {
        Effects::ReadOnly
    }

    fn schema(&self) -> Value {
        json!({
            "type": "object",
            "properties": {
                "file_path": { "type": "string", "minLength": 1, "description": "a path within the workspace" },
                "offset": { "type": "integer", "minimum": 1, "description": "the first line to show, from 1" },
                "limit": { "type": "integer", "minimum": 1, "description": "how many lines to show; 2000 if missing" }
            },
            "required": ["file_path"],
            "additionalProperties": false
        })
    }

    fn validate(&self, arguments: &Value) -> Result<()> {
        Arguments::parse(arguments).map(drop)
    }

    async fn call(&self, arguments: &Value, context: &ToolContext) -> CallResult {
        let arguments = Arguments::parse(arguments)?;
        let read = async {
            let sandbox = context.sandbox.get().await?;
            sandbox.read_file(&arguments.file_path, ByteRange::first(MAX_FILE_BYTES + 1)).await
        };
        let contents = context.within_limits(read).await.map_err(rename("path", "file_path"))?;
        if contents.bytes.len() as u64 > MAX_FILE_BYTES {
            let message = format!(
                "{} bytes, at most {MAX_FILE_BYTES} can be read; use Bash to see a part",
                contents.size
            );
            return Err(Error::new(Code::TooLarge, message).at(field("file_path")).into());
        }
        if let Some(what) = binary(&contents.bytes) {
            let message = format!("{what} of {} bytes, not text", contents.bytes.len());
            return Err(Error::new(Code::ToolFailed, message).at(field("file_path")).into());
        }
        Ok(show(&contents.bytes, &arguments)?)
    }
}

fn show(bytes: &[u8], arguments: &Arguments) -> Result<Value> {
    let text = String::from_utf8_lossy(bytes);
    let (first, limit) = (arguments.offset.unwrap_or(1), arguments.limit.unwrap_or(DEFAULT_LINES));
    let (mut shown, mut count, mut total, mut truncated) = (String::new(), 0, 0, false);
    for line in text.lines() {
        total += 1;
        if total < first {
            continue;
        }
        // Once one line is left out, so are all after it.
        if truncated || count == limit || shown.len() >= MAX_SHOWN_BYTES {
            truncated = true;
            continue;
        }
        add_line(&mut shown, total, line);
        count += 1;
    }
    if first > total.max(1) {
        return Err(Error::invalid(
            field("offset"),
            format!("expected at most {total}, the number of lines"),
        ));
    }
    // NUL may follow after what was sniffed, and cannot be stored.
    let content = if shown.contains('\0') { shown.replace('\0', "\u{fffd}") } else { shown };
    Ok(json!({
        "content": content,
        "start_line": first,
        "lines": count,
        "total_lines": total,
        "truncated": truncated,
    }))
}

fn add_line(shown: &mut String, number: u64, line: &str) {
    let cut = line.char_indices().nth(MAX_LINE_CHARS).map(|(index, _)| index);
    let kept = &line[..cut.unwrap_or(line.len())];
    // Writing to a string cannot fail.
    let _infallible = write!(shown, "{number:>6}\t{kept}");
    if cut.is_some() {
        let _infallible = write!(shown, " [… {} bytes left out …]", line.len() - kept.len());
    }
    shown.push('\n');
}

/// What a file is, if it is not text.
fn binary(bytes: &[u8]) -> Option<&'static str> {
    const KNOWN: [(&[u8], &str); 7] = [
        (b"\x89PNG\r\n\x1a\n", "a PNG image"),
        (b"\xff\xd8\xff", "a JPEG image"),
        (b"GIF8", "a GIF image"),
        (b"%PDF-", "a PDF document"),
        (b"PK\x03\x04", "a ZIP archive"),
        (b"\x1f\x8b", "a gzip archive"),
        (b"\x7fELF", "an ELF binary"),
    ];
    if let Some((_, what)) = KNOWN.iter().find(|(magic, _)| bytes.starts_with(magic)) {
        return Some(what);
    }
    bytes.iter().take(SNIFF_BYTES).any(|byte| *byte == 0).then_some("a binary file")
}
