//! Offloads tool results that are too long into files.
//!
//! Bash has its own limits. The result of any other tool is limited here: its full text goes into a file, and the
//! model sees both ends of it and the file's path.

use remuda_domain::tool::{LongResults, ToolCatalog, ToolOutcome};
use serde_json::json;

use crate::agent::render;

const MAX_BYTES: usize = 50 * 1024;
const MAX_LINES: usize = 2000;
/// Reserved for the note about the omission, in bytes and lines.
const NOTE_BYTES: usize = 1024;
const NOTE_LINES: usize = 16;

/// A result that is too long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OversizedResult {
    /// The full text, as models would see it.
    pub(crate) text: String,
    /// Whether the text has to be stored: not if it is in a file anyway.
    pub(crate) needs_artifact: bool,
}

/// Finds a result that is too long.
pub(crate) fn oversized(outcome: &ToolOutcome, tools: &ToolCatalog) -> Option<OversizedResult> {
    let needs_artifact = match tools.describe(&outcome.tool).long_results {
        LongResults::Keep => return None,
        LongResults::Offload => true,
        LongResults::InFile => false,
    };
    let text = render::result_text(outcome);
    let is_long = text.len() > MAX_BYTES || (needs_artifact && text.lines().count() > MAX_LINES);
    is_long.then_some(OversizedResult { text, needs_artifact })
}

impl OversizedResult {
    /// The shortened result. `artifact` is the path of the file with the full text, if there is one.
    pub(crate) fn shorten(&self, outcome: ToolOutcome, artifact: Option<&str>) -> ToolOutcome {
        let mut output =
            json!({ "truncated": true, "bytes": self.text.len(), "text": self.preview(artifact) });
        if let Some(path) = artifact {
            output["artifacts"] = json!({ "output": path });
        }
        // The failure's message is part of the text, and may be what makes it too long.
        let failure = outcome.failure.map(|mut failure| {
            failure.message = super::excerpt::excerpt(&failure.message, NOTE_BYTES / 4);
            failure
        });
        ToolOutcome { output, failure, ..outcome }
    }

    fn preview(&self, artifact: Option<&str>) -> String {
        let (bytes, lines) = (MAX_BYTES - 2 * NOTE_BYTES, MAX_LINES - NOTE_LINES);
        let head = head(&self.text, bytes - bytes / 3, lines - lines / 3);
        let tail = tail(&self.text[head.len()..], bytes / 3, lines / 3);
        let omitted = self.text.len() - head.len() - tail.len();
        let rest = match artifact {
            Some(path) => format!("all of it is in {path}: see the rest with Read or Grep"),
            None if self.needs_artifact => "the rest was not kept: ask for less at once".to_owned(),
            None => "see the rest with offset and limit".to_owned(),
        };
        format!("{head}\n[… {omitted} bytes left out; {rest} …]\n{tail}")
    }
}

/// Whole lines from the beginning, or a part of a line that is too long by itself.
fn head(text: &str, bytes: usize, lines: usize) -> &str {
    let mut end = text.len().min(bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    if let Some((at, _)) = text[..end].match_indices('\n').nth(lines.saturating_sub(1)) {
        return &text[..at];
    }
    if end == text.len() { text } else { text[..end].rfind('\n').map_or(&text[..end], |at| &text[..at]) }
}

/// Whole lines from the end, or a part of a line that is too long by itself.
fn tail(text: &str, bytes: usize, lines: usize) -> &str {
    let mut start = text.len().saturating_sub(bytes);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    if let Some((at, _)) =
        text[start..].trim_end_matches('\n').rmatch_indices('\n').nth(lines.saturating_sub(1))
    {
        return &text[start + at + 1..];
    }
    text[start..].find('\n').map_or(&text[start..], |at| &text[start + at + 1..])
}

#[cfg(test)]
mod unit {
    use remuda_domain::{
        ToolCallId,
        tool::{CallStatus, ToolCall},
    };
    use serde_json::Value;

    use super::*;
    use crate::agent::context::tests::tools;

    fn outcome(tool: &str, output: Value) -> ToolOutcome {
        let call = ToolCall {
            id: ToolCallId::new(),
            tool: tool.into(),
            arguments: json!({}),
            parallel: false,
            timeout: None,
        };
        ToolOutcome { output, ..ToolOutcome::without_result(&call, CallStatus::Completed, None) }
    }

    fn numbered(lines: usize, width: usize) -> String {
        (0..lines).map(|line| format!("{line:0width$}\n")).collect()
    }

    #[test]
    fn only_long_results_are_oversized() {
        let image = json!({ "kind": "image", "media_type": "image/png", "data": "A".repeat(99_999) });
        for (tool, output, expected) in [
            ("Grep", json!("x".repeat(50 * 1024)), None),
            ("Grep", json!("x".repeat(50 * 1024 + 1)), Some(true)),
            ("Grep", json!(numbered(2000, 4)), None),
            ("Grep", json!(numbered(2001, 4)), Some(true)),
            ("Grep", json!({ "matches": vec!["x".repeat(80); 1000] }), Some(true)),
            ("Read", json!(numbered(2001, 4)), None),
            ("Read", json!("x".repeat(99_999)), Some(false)),
            ("Read", image, None),
            ("Skill", json!("x".repeat(99_999)), None),
        ] {
            let found =
                oversized(&outcome(tool, output.clone()), &tools()).map(|oversized| oversized.needs_artifact);
            assert_eq!(found, expected, "{tool} {}", output.to_string().len());
        }
    }

    #[test]
    fn preview_shows_whole_lines_of_both_ends() {
        let whole = numbered(10_000, 9);
        let long = outcome("Grep", json!(whole));
        let found = oversized(&long, &tools()).unwrap();
        assert_eq!(found.text, whole);
        let short = found.shorten(long, Some("state/1/output"));
        assert_eq!(oversized(&short, &tools()), None, "a shortened result is not oversized");
        assert_eq!(short.output["artifacts"]["output"], "state/1/output");
        let text = short.output["text"].as_str().unwrap();
        let (head, tail) = text.split_once("\n[… ").unwrap();
        let (note, tail) = tail.split_once("…]\n").unwrap();
        assert!(head.starts_with("000000000\n") && tail.ends_with("000009999\n"));
        assert!(text.lines().all(|line| line.len() == 9 || line.starts_with("[…")), "no line is cut");
        assert!(note.contains("all of it is in state/1/output"));
        assert!((1.5..2.5).contains(&(head.len() as f64 / tail.len() as f64)));
    }

    #[test]
    fn text_without_line_breaks_is_cut_at_characters() {
        let whole = "ä".repeat(99_999);
        let long = outcome("Other", json!(whole));
        let short = oversized(&long, &tools()).unwrap().shorten(long, None);
        assert_eq!(oversized(&short, &tools()), None);
        let text = short.output["text"].as_str().unwrap();
        assert!(text.contains("ask for less") && text.len() > 40_000);
        let long = outcome("Read", json!(whole));
        let short = oversized(&long, &tools()).unwrap().shorten(long, None);
        assert!(short.output["text"].as_str().unwrap().contains("offset and limit"));
    }
}
