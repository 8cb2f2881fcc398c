//! Human-readable view of an agent's conversation: messages, tool calls and their results.
//!
//! [`LiveRun`] turns a run's events and message deltas into [`DisplayItem`]s; [`ChildRuns`] does the same for the runs of its
//! sub-agents. A [`Screen`] writes the items to a terminal as they arrive, or to files in complete lines. [`transcript`] prints
//! stored messages. Text from models, tools and users is sanitized here.

mod child_runs;
mod command_output;
mod headline;
mod live_run;
mod notice;
mod result;
mod screen;
mod transcript;

pub(super) use child_runs::ChildRuns;
pub(super) use command_output::CommandOutput;
pub(super) use headline::{headline, script_of};
pub(super) use live_run::{DisplayItem, LiveRun};
pub(super) use notice::notice;
pub(super) use result::Length;
use result::result_lines;
pub(super) use screen::Screen;
pub(super) use transcript::{Transcript, message_lines};

use crate::output::{Sink, Style};

/// A line of text and its style.
pub(super) type Line = (Option<Style>, String);

/// The line with the style codes of the sink.
pub(super) fn painted(sink: Sink, (style, text): &Line) -> String {
    match style {
        Some(style) => sink.paint(*style, text),
        None => text.clone(),
    }
}

/// The line that names a tool call; its result follows below.
pub(super) fn call_line(sink: Sink, tool: &str, detail: &str) -> String {
    let (mark, tool) = (sink.paint(Style::Accent, "⏺"), sink.paint(Style::Bold, tool));
    if detail.is_empty() { format!("{mark} {tool}") } else { format!("{mark} {tool}  {detail}") }
}

/// The lines of a result, indented below the line of its call.
pub(super) fn result_block(sink: Sink, lines: &[Line]) -> Vec<String> {
    let mark = sink.paint(Style::Dim, "⎿");
    let shown = lines.iter().enumerate().map(|(index, line)| {
        let lead = if index == 0 { format!("  {mark} ") } else { " ".repeat(4) };
        format!("{lead}{}", painted(sink, line)).trim_end().to_owned()
    });
    shown.collect()
}
