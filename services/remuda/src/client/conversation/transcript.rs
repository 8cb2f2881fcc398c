//! Prints the stored messages of a session.

use remuda_proto::v1;
use serde_json::Value;

use super::{
    Length, Line, call_line, headline,
    live_run::text_of,
    result::{bounded, result_lines},
    result_block,
};
use crate::{
    client::json,
    output::{Sink, Style, one_line, sanitize},
};

/// Limits of lines shown of reasoning and of a compaction summary.
const REASONING_LINES: usize = 6;
const SUMMARY_LINES: usize = 12;

/// Prints messages in order, each tool call together with its result.
#[derive(Debug)]
pub(crate) struct Transcript {
    sink: Sink,
    length: Length,
    agent: String,
    /// Calls without a result so far: id and line.
    pending_calls: Vec<(String, String)>,
    has_output: bool,
    /// The last line belongs to a call: the next call follows without an empty line.
    in_calls: bool,
}

impl Transcript {
    pub(crate) fn new(sink: Sink, length: Length) -> Self {
        Self {
            sink,
            length,
            agent: String::new(),
            pending_calls: Vec::new(),
            has_output: false,
            in_calls: false,
        }
    }

    pub(crate) fn show(&mut self, message: &v1::Message) {
        for line in self.lines(message) {
            self.sink.line(&line);
        }
    }

    /// Prints the calls that have no result.
    pub(crate) fn finish(&mut self) {
        for line in self.pending_call_lines() {
            self.sink.line(&line);
        }
    }

    fn lines(&mut self, message: &v1::Message) -> Vec<String> {
        let parts = match json::embedded(&message.parts) {
            Value::Array(parts) => parts,
            _ => Vec::new(),
        };
        let mut lines = Vec::new();
        match message.role.as_str() {
            // A summary has no author: it replaces the messages before it.
            _ if parts.iter().any(|part| part["type"] == "summary") => {
                for part in &parts {
                    self.part(part, &mut lines);
                }
                return lines;
            }
            "tool" => {
                for part in &parts {
                    self.part(part, &mut lines);
                }
                return lines;
            }
            "user" => {
                self.begin(&mut lines);
                lines.extend(self.quote(Style::Accent, "❯", &text_of(&parts), Style::Bold));
                for part in parts.iter().filter(|part| part["type"] != "text") {
                    self.part(part, &mut lines);
                }
                return lines;
            }
            "assistant" => {
                if self.agent != message.agent {
                    self.begin(&mut lines);
                    self.agent.clone_from(&message.agent);
                    lines.push(self.sink.paint(Style::Dim, &format!("● {}", one_line(&message.agent))));
                }
            }
            role => {
                self.begin(&mut lines);
                lines.push(self.sink.paint(Style::Dim, &format!("● {}", one_line(role))));
            }
        }
        for part in &parts {
            self.part(part, &mut lines);
        }
        lines
    }

    /// Prints pending calls of the message before, then an empty line.
    fn begin(&mut self, lines: &mut Vec<String>) {
        lines.extend(self.pending_call_lines());
        self.separate(lines);
        self.in_calls = false;
    }

    fn separate(&mut self, lines: &mut Vec<String>) {
        if std::mem::replace(&mut self.has_output, true) {
            lines.push(String::new());
        }
    }

    fn begin_call(&mut self, lines: &mut Vec<String>) {
        if !std::mem::replace(&mut self.in_calls, true) {
            self.separate(lines);
        }
    }

    fn pending_call_lines(&mut self) -> Vec<String> {
        let nothing: Line = (Some(Style::Dim), "no result yet".to_owned());
        let mut lines = Vec::new();
        for (_, call) in std::mem::take(&mut self.pending_calls) {
            self.begin_call(&mut lines);
            lines.push(call);
            lines.extend(result_block(self.sink, std::slice::from_ref(&nothing)));
        }
        lines
    }

    fn part(&mut self, part: &Value, lines: &mut Vec<String>) {
        let sink = self.sink;
        match part["type"].as_str() {
            Some("text") => {
                self.begin(lines);
                let text = sanitize(part["text"].as_str().unwrap_or_default());
                lines.extend(text.trim_matches('\n').lines().map(|line| format!("  {line}")));
            }
            Some("reasoning") => {
                let text = part["reasoning"]["text"].as_str().unwrap_or_default();
                let text = sanitize(text);
                let reasoning: Vec<Line> = text.lines().map(|line| (None, line.to_owned())).collect();
                if !reasoning.is_empty() {
                    self.begin(lines);
                }
                let shown = bounded(reasoning, REASONING_LINES, self.length).into_iter().enumerate();
                lines.extend(shown.map(|(index, (_, line))| {
                    let lead = if index == 0 { "✻" } else { " " };
                    sink.paint(Style::Dim, &format!("{lead} {line}"))
                }));
            }
            Some("summary") => {
                self.begin(lines);
                lines.push(
                    sink.paint(Style::Dim, "↻ summary, sent to models instead of the messages before it"),
                );
                let text = sanitize(part["text"].as_str().unwrap_or_default());
                let text: Vec<Line> = text.lines().map(|line| (None, line.to_owned())).collect();
                let shown = bounded(text, SUMMARY_LINES, self.length).into_iter();
                lines.extend(shown.map(|(_, line)| sink.paint(Style::Dim, &format!("  {line}"))));
            }
            Some("image") => lines.push(sink.paint(Style::Dim, &format!("  [{}]", image(&part["image"])))),
            Some("tool_use") => {
                let call = &part["call"];
                let text = |name: &str| call[name].as_str().unwrap_or_default();
                let detail = headline(text("tool"), &call["arguments"]);
                let line = call_line(sink, &one_line(text("tool")), &detail);
                self.pending_calls.push((text("id").to_owned(), line));
            }
            Some("tool_result") => self.result(&part["outcome"], lines),
            _ => lines.push(format!("  {}", one_line(&part.to_string()))),
        }
    }

    fn result(&mut self, outcome: &Value, lines: &mut Vec<String>) {
        let id = outcome["id"].as_str().unwrap_or_default();
        let call = match self.pending_calls.iter().position(|(pending, _)| pending == id) {
            Some(at) => self.pending_calls.remove(at).1,
            None => call_line(self.sink, &one_line(outcome["tool"].as_str().unwrap_or_default()), ""),
        };
        self.begin_call(lines);
        lines.push(call);
        lines.extend(result_block(self.sink, &result_lines(outcome, self.length)));
    }

    /// Text with a mark on its first line.
    fn quote(&self, mark_style: Style, mark: &str, text: &str, style: Style) -> Vec<String> {
        let mark = self.sink.paint(mark_style, mark);
        let shown = text.trim_matches('\n').lines().enumerate().map(|(index, line)| {
            let line = self.sink.paint(style, line);
            if index == 0 { format!("{mark} {line}") } else { format!("  {line}") }
        });
        shown.collect()
    }
}

/// The text and the calls of a message (its parts in their JSON form). Results are left to their own events.
pub(crate) fn message_lines(sink: Sink, parts: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    for part in parts.as_array().into_iter().flatten() {
        let plain = |text: &Value| sanitize(text.as_str().unwrap_or_default());
        match part["type"].as_str() {
            Some("text") => lines.extend(plain(&part["text"]).lines().map(str::to_owned)),
            Some("reasoning") => {
                let reasoning = plain(&part["reasoning"]["text"]);
                lines.extend(reasoning.lines().map(|line| sink.paint(Style::Dim, &format!("✻ {line}"))));
            }
            Some("summary") => {
                let text = plain(&part["text"]);
                lines.extend(text.lines().map(|line| sink.paint(Style::Dim, &format!("↻ {line}"))));
            }
            Some("image") => lines.push(sink.paint(Style::Dim, &format!("[{}]", image(&part["image"])))),
            Some("tool_use") => {
                let tool = part["call"]["tool"].as_str().unwrap_or_default();
                lines.push(call_line(sink, &one_line(tool), &headline(tool, &part["call"]["arguments"])));
            }
            _ => {}
        }
    }
    lines
}

/// A short description of an image.
fn image(image: &Value) -> String {
    let text = |name: &str| image[name].as_str().unwrap_or_default();
    match text("source") {
        "url" => format!("image {}", one_line(text("url"))),
        // Base64 has four characters for three bytes.
        _ => format!("{} of {} bytes", one_line(text("media_type")), text("data").len() / 4 * 3),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::output::{ColorChoice, Output};

    fn message(role: &str, parts: &Value) -> v1::Message {
        let agent = if role == "assistant" { "build" } else { "" };
        v1::Message { role: role.into(), agent: agent.into(), parts: parts.to_string(), ..Default::default() }
    }

    fn shown(messages: &[v1::Message], length: Length) -> String {
        let mut transcript = Transcript::new(Output::new(false, ColorChoice::Never).out, length);
        let mut lines: Vec<String> = messages.iter().flat_map(|message| transcript.lines(message)).collect();
        lines.extend(transcript.pending_call_lines());
        lines.join("\n")
    }

    #[test]
    fn calls_are_shown_with_their_results() {
        let call = |id: &str, command: &str| json!({ "type": "tool_use", "call": { "id": id, "tool": "Bash", "arguments": { "command": command } } });
        let result = |id: &str, text: &str| {
            json!({ "type": "tool_result", "outcome": { "id": id, "tool": "Bash", "status": "completed",
            "output": { "exit_code": 0, "stdout": text }, "duration_ms": 1 } })
        };
        let messages = [
            message("user", &json!([{ "type": "text", "text": "fix\nit" }])),
            message(
                "assistant",
                &json!([{ "type": "reasoning", "reasoning": { "text": "Hm." } }, { "type": "text", "text": "I look." },
                call("t1", "ls"), call("t2", "make")]),
            ),
            message("tool", &json!([result("t1", "a\n"), result("t2", "ok\n")])),
            message(
                "assistant",
                &json!([{ "type": "text", "text": "Done.\u{1b}[2J" }, call("t3", "sleep 9")]),
            ),
        ];
        let expected = "\
❯ fix
  it

● build

✻ Hm.

  I look.

⏺ Bash  ls
  ⎿ exit code 0
    a
⏺ Bash  make
  ⎿ exit code 0
    ok

  Done.

⏺ Bash  sleep 9
  ⎿ no result yet";
        assert_eq!(shown(&messages, Length::Short), expected);
    }

    #[test]
    fn image_is_described_by_type_and_size() {
        let inline = json!({ "type": "image", "image": { "source": "inline", "media_type": "image/png", "data": "AAAA" } });
        let messages = [message("user", &json!([{ "type": "text", "text": "look" }, inline]))];
        assert_eq!(shown(&messages, Length::Short), "❯ look\n  [image/png of 3 bytes]");
    }

    #[test]
    fn summary_is_marked_as_such() {
        let summary = json!([{ "type": "summary", "text": "It was\nlong.\u{1b}[2J", "through": "msg_1" }]);
        let messages = [
            message("user", &json!([{ "type": "text", "text": "hi" }])),
            message("user", &summary),
            message("assistant", &json!([{ "type": "text", "text": "Yes." }])),
        ];
        let expected = "\
❯ hi

↻ summary, sent to models instead of the messages before it
  It was
  long.

● build

  Yes.";
        assert_eq!(shown(&messages, Length::Short), expected);
    }

    #[test]
    fn delegation_shows_the_child_session() {
        let call = json!({ "id": "t1", "tool": "SubAgent", "arguments": { "subagent_type": "review", "description": "read" } });
        let output =
            json!({ "task_id": "ses_1", "agent": "review", "state": "completed", "result": "Fine." });
        let outcome = json!({ "id": "t1", "tool": "SubAgent", "status": "completed", "output": output });
        let messages = [
            message("assistant", &json!([{ "type": "tool_use", "call": call }])),
            message("tool", &json!([{ "type": "tool_result", "outcome": outcome }])),
        ];
        let expected = "● build\n\n⏺ SubAgent  review: read\n  ⎿ review · ses_1\n    Fine.";
        assert_eq!(shown(&messages, Length::Short), expected);
    }
}
