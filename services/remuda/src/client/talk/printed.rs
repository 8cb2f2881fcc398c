//! What running commands print, line by line, and what is left of it for their results.

use std::collections::HashMap;

use remuda_proto::v1;
use serde_json::Value;

use super::Line;
use crate::output::{Sanitizer, Style};

/// Calls at work at once. Those beyond show what they printed with their results.
const MAX_CALLS: usize = 64;
/// The most that is remembered of a stream. A server tells less.
const MAX_HEARD: usize = 4 << 20;

/// The output of calls that are at work.
#[derive(Debug, Default)]
pub(crate) struct Printed {
    calls: HashMap<String, Call>,
}

#[derive(Debug, Default)]
struct Call {
    stdout: Strand,
    stderr: Strand,
}

/// One stream.
#[derive(Debug, Default)]
struct Strand {
    /// As it came, from the beginning on.
    heard: String,
    /// Bytes of it that stand in lines that were shown.
    shown: usize,
    /// Pieces are missing: what follows is shown with the result.
    broken: bool,
    sanitizer: Sanitizer,
}

impl Printed {
    /// The lines that a piece of output completes.
    pub(crate) fn hear(&mut self, delta: &v1::Delta) -> Vec<Line> {
        if !self.calls.contains_key(&delta.call_id) && self.calls.len() >= MAX_CALLS {
            return Vec::new();
        }
        let call = self.calls.entry(delta.call_id.clone()).or_default();
        let (strand, style) = match delta.kind.as_str() {
            "stdout" => (&mut call.stdout, None),
            "stderr" => (&mut call.stderr, Some(Style::Warn)),
            "notice" => {
                return vec![(Some(Style::Dim), format!("… {}", crate::output::one_line(&delta.text)))];
            }
            // A newer server may send kinds we do not know.
            _ => return Vec::new(),
        };
        strand.hear(delta).into_iter().map(|line| (style, line)).collect()
    }

    /// The outcome of a call (in its JSON form) without what was shown of its output.
    pub(crate) fn rest(&mut self, outcome: &Value) -> Value {
        let mut rest = outcome.clone();
        let Some(call) = outcome["id"].as_str().and_then(|id| self.calls.remove(id)) else { return rest };
        let Some(output) = rest.get_mut("output").and_then(Value::as_object_mut) else { return rest };
        let mut all_shown = true;
        for (name, strand) in [("stdout", call.stdout), ("stderr", call.stderr)] {
            let total = output.get(&format!("{name}_bytes")).and_then(Value::as_u64);
            let Some(Value::String(text)) = output.get_mut(name) else { continue };
            all_shown &= total.is_none() || strand.has_all(total);
            *text = strand.rest(text, total).to_owned();
        }
        if all_shown {
            output.remove("truncated");
        }
        rest
    }
}

impl Strand {
    fn hear(&mut self, delta: &v1::Delta) -> Vec<String> {
        let known = u64::try_from(self.heard.len()).unwrap_or(u64::MAX);
        self.broken |= delta.offset != known || self.heard.len() + delta.text.len() > MAX_HEARD;
        if self.broken {
            return Vec::new();
        }
        self.heard.push_str(&delta.text);
        let Some(end) = self.heard[self.shown..].rfind('\n').map(|at| self.shown + at + 1) else {
            return Vec::new();
        };
        let lines = self.sanitizer.push(&self.heard[self.shown..end]);
        self.shown = end;
        lines.lines().map(str::to_owned).collect()
    }

    /// Whether everything was heard of an output that is too long for the result.
    fn has_all(&self, total: Option<u64>) -> bool {
        let heard = u64::try_from(self.heard.len()).unwrap_or(u64::MAX);
        !self.broken && total.is_some_and(|total| heard >= total)
    }

    /// What was not shown of the result's text, or where that is too short, of what was heard.
    fn rest<'a>(&'a self, text: &'a str, total: Option<u64>) -> &'a str {
        if self.has_all(total) {
            return &self.heard[self.shown..];
        }
        // Where something was left out of the text, it goes on differently from there.
        let same = self.heard.bytes().zip(text.bytes()).take_while(|(heard, said)| heard == said).count();
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

    fn lines(printed: &mut Printed, kind: &str, offset: u64, text: &str) -> Vec<String> {
        printed.hear(&piece(kind, offset, text)).into_iter().map(|(_, line)| line).collect()
    }

    fn outcome(stdout: &str, stderr: &str) -> Value {
        json!({ "id": "tool_1", "output": { "exit_code": 0, "stdout": stdout, "stderr": stderr } })
    }

    #[test]
    fn lines_are_shown_once() {
        let mut printed = Printed::default();
        assert_eq!(lines(&mut printed, "stdout", 0, "one\ntw"), ["one"]);
        assert_eq!(lines(&mut printed, "stderr", 0, "oops\n"), ["oops"]);
        assert_eq!(lines(&mut printed, "stdout", 6, "o\u{1b}[2J\nthr"), ["two"]);
        assert!(lines(&mut printed, "later", 0, "?\n").is_empty());
        let rest = printed.rest(&outcome("one\ntwo\u{1b}[2J\nthree\n", "oops\nagain\n"));
        assert_eq!(
            (&rest["output"]["stdout"], &rest["output"]["stderr"]),
            (&json!("three\n"), &json!("again\n"))
        );
        // It is forgotten.
        assert_eq!(printed.rest(&outcome("one\n", "")), outcome("one\n", ""));
    }

    #[test]
    fn what_follows_a_hole_is_left_to_the_result() {
        let mut printed = Printed::default();
        assert_eq!(lines(&mut printed, "stdout", 0, "one\n"), ["one"]);
        assert!(lines(&mut printed, "stdout", 9, "three\n").is_empty());
        assert!(lines(&mut printed, "stdout", 4, "two\n").is_empty());
        let rest = printed.rest(&outcome("one\ntwo\nthree\n", ""));
        assert_eq!(rest["output"]["stdout"], "two\nthree\n");
        let mut late = Printed::default();
        assert!(lines(&mut late, "stdout", 100, "late\n").is_empty());
        assert_eq!(late.rest(&outcome("all of it\n", "")), outcome("all of it\n", ""));
    }

    #[test]
    fn of_a_shortened_result_only_the_unknown_is_shown() {
        let cut = |stdout: &str, bytes: u64| {
            let output = json!({ "stdout": stdout, "stderr": "", "truncated": true, "stdout_bytes": bytes });
            json!({ "id": "tool_1", "output": output })
        };
        let result = cut("aa\n\n[… 9 bytes left out …]\nzz\n", 15);
        let mut all = Printed::default();
        lines(&mut all, "stdout", 0, "aa\nbb\ncc\ndd\nzz\n");
        let rest = all.rest(&result);
        assert_eq!((&rest["output"]["stdout"], rest["output"].get("truncated")), (&json!(""), None));
        let mut some = Printed::default();
        lines(&mut some, "stdout", 0, "aa\nbb\n");
        let rest = some.rest(&result);
        assert_eq!(rest["output"]["stdout"], "\n[… 9 bytes left out …]\nzz\n");
        assert_eq!(rest["output"]["truncated"], true);
    }

    #[test]
    fn a_notice_is_told() {
        let mut printed = Printed::default();
        assert_eq!(lines(&mut printed, "notice", 0, "no more\nof it"), ["… no more of it"]);
    }
}
