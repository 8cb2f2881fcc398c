//! Output of running commands, shown line by line; results then show only the remainder.

use std::collections::HashMap;

use remuda_proto::v1;
use serde_json::Value;

use super::Line;
use crate::output::{Sanitizer, Style};

/// Running calls that are tracked. Calls above the limit show their output with their results.
const MAX_CALLS: usize = 64;
/// Limit of bytes kept per stream; servers send less.
const MAX_STREAM_BYTES: usize = 4 << 20;

/// The output of running calls.
#[derive(Debug, Default)]
pub(crate) struct CommandOutput {
    calls: HashMap<String, CallStreams>,
}

#[derive(Debug, Default)]
struct CallStreams {
    stdout: OutputStream,
    stderr: OutputStream,
}

/// The stdout or the stderr of a call.
#[derive(Debug, Default)]
struct OutputStream {
    /// Unsanitized, from the beginning.
    received: String,
    /// Bytes of `received` that were shown, in complete lines.
    shown: usize,
    /// Deltas are missing: the rest is shown with the result.
    incomplete: bool,
    sanitizer: Sanitizer,
}

impl CommandOutput {
    /// The lines that a delta completes.
    pub(crate) fn receive(&mut self, delta: &v1::Delta) -> Vec<Line> {
        if !self.calls.contains_key(&delta.call_id) && self.calls.len() >= MAX_CALLS {
            return Vec::new();
        }
        let call = self.calls.entry(delta.call_id.clone()).or_default();
        let (stream, style) = match delta.kind.as_str() {
            "stdout" => (&mut call.stdout, None),
            "stderr" => (&mut call.stderr, Some(Style::Warn)),
            "notice" => {
                return vec![(Some(Style::Dim), format!("… {}", crate::output::one_line(&delta.text)))];
            }
            // A newer server may send kinds we do not know.
            _ => return Vec::new(),
        };
        stream.receive(delta).into_iter().map(|line| (style, line)).collect()
    }

    /// The outcome of a call (in its JSON form) without the output that was shown already.
    pub(crate) fn unshown(&mut self, outcome: &Value) -> Value {
        let mut unshown = outcome.clone();
        let Some(call) = outcome["id"].as_str().and_then(|id| self.calls.remove(id)) else { return unshown };
        let Some(output) = unshown.get_mut("output").and_then(Value::as_object_mut) else { return unshown };
        let mut all_shown = true;
        for (name, stream) in [("stdout", call.stdout), ("stderr", call.stderr)] {
            let total = output.get(&format!("{name}_bytes")).and_then(Value::as_u64);
            let Some(Value::String(text)) = output.get_mut(name) else { continue };
            all_shown &= total.is_none() || stream.has_all(total);
            *text = stream.unshown(text, total).to_owned();
        }
        if all_shown {
            output.remove("truncated");
        }
        unshown
    }
}

impl OutputStream {
    fn receive(&mut self, delta: &v1::Delta) -> Vec<String> {
        let known = u64::try_from(self.received.len()).unwrap_or(u64::MAX);
        self.incomplete |= delta.offset != known || self.received.len() + delta.text.len() > MAX_STREAM_BYTES;
        if self.incomplete {
            return Vec::new();
        }
        self.received.push_str(&delta.text);
        let Some(end) = self.received[self.shown..].rfind('\n').map(|at| self.shown + at + 1) else {
            return Vec::new();
        };
        let lines = self.sanitizer.push(&self.received[self.shown..end]);
        self.shown = end;
        lines.lines().map(str::to_owned).collect()
    }

    /// Whether the whole output was received, though the result contains only a part of it.
    fn has_all(&self, total: Option<u64>) -> bool {
        let received = u64::try_from(self.received.len()).unwrap_or(u64::MAX);
        !self.incomplete && total.is_some_and(|total| received >= total)
    }

    /// The part of the output that was not shown: of the received deltas if they are complete, else of the result's text.
    fn unshown<'a>(&'a self, text: &'a str, total: Option<u64>) -> &'a str {
        if self.has_all(total) {
            return &self.received[self.shown..];
        }
        // A shortened text equals the received one only up to the cut.
        let same = self
            .received
            .bytes()
            .zip(text.bytes())
            .take_while(|(received, result)| received == result)
            .count();
        &text[text.floor_char_boundary(same.min(self.shown))..]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn piece(kind: &str, offset: u64, text: &str) -> v1::Delta {
        let call_id = "tool_1".to_owned();
        v1::Delta { call_id, kind: kind.into(), offset, text: text.into(), ..Default::default() }
    }

    fn lines(printed: &mut CommandOutput, kind: &str, offset: u64, text: &str) -> Vec<String> {
        printed.receive(&piece(kind, offset, text)).into_iter().map(|(_, line)| line).collect()
    }

    fn outcome(stdout: &str, stderr: &str) -> Value {
        json!({ "id": "tool_1", "output": { "exit_code": 0, "stdout": stdout, "stderr": stderr } })
    }

    #[test]
    fn each_line_is_shown_once() {
        let mut printed = CommandOutput::default();
        assert_eq!(lines(&mut printed, "stdout", 0, "one\ntw"), ["one"]);
        assert_eq!(lines(&mut printed, "stderr", 0, "oops\n"), ["oops"]);
        assert_eq!(lines(&mut printed, "stdout", 6, "o\u{1b}[2J\nthr"), ["two"]);
        assert!(lines(&mut printed, "later", 0, "?\n").is_empty());
        let unshown = printed.unshown(&outcome("one\ntwo\u{1b}[2J\nthree\n", "oops\nagain\n"));
        assert_eq!(
            (&unshown["output"]["stdout"], &unshown["output"]["stderr"]),
            (&json!("three\n"), &json!("again\n"))
        );
        // The call is no longer tracked.
        assert_eq!(printed.unshown(&outcome("one\n", "")), outcome("one\n", ""));
    }

    #[test]
    fn output_after_a_missing_delta_is_left_to_the_result() {
        let mut printed = CommandOutput::default();
        assert_eq!(lines(&mut printed, "stdout", 0, "one\n"), ["one"]);
        assert!(lines(&mut printed, "stdout", 9, "three\n").is_empty());
        assert!(lines(&mut printed, "stdout", 4, "two\n").is_empty());
        let unshown = printed.unshown(&outcome("one\ntwo\nthree\n", ""));
        assert_eq!(unshown["output"]["stdout"], "two\nthree\n");
        let mut late = CommandOutput::default();
        assert!(lines(&mut late, "stdout", 100, "late\n").is_empty());
        assert_eq!(late.unshown(&outcome("all of it\n", "")), outcome("all of it\n", ""));
    }

    #[test]
    fn shortened_result_shows_only_what_was_not_received() {
        let cut = |stdout: &str, bytes: u64| {
            let output = json!({ "stdout": stdout, "stderr": "", "truncated": true, "stdout_bytes": bytes });
            json!({ "id": "tool_1", "output": output })
        };
        let result = cut("aa\n\n[… 9 bytes left out …]\nzz\n", 15);
        let mut all = CommandOutput::default();
        lines(&mut all, "stdout", 0, "aa\nbb\ncc\ndd\nzz\n");
        let unshown = all.unshown(&result);
        assert_eq!((&unshown["output"]["stdout"], unshown["output"].get("truncated")), (&json!(""), None));
        let mut some = CommandOutput::default();
        lines(&mut some, "stdout", 0, "aa\nbb\n");
        let unshown = some.unshown(&result);
        assert_eq!(unshown["output"]["stdout"], "\n[… 9 bytes left out …]\nzz\n");
        assert_eq!(unshown["output"]["truncated"], true);
    }

    #[test]
    fn notice_is_shown_in_one_line() {
        let mut printed = CommandOutput::default();
        assert_eq!(lines(&mut printed, "notice", 0, "no more\nof it"), ["… no more of it"]);
    }
}
