//! A conversation with an agent, for people: what is said, which tools are called, and what came of it.
//!
//! [`Live`] follows a run and turns its events, and the pieces of messages that are being said, into [`Piece`]s; [`Helpers`] are
//! those who work for it. A [`Screen`] puts these on a terminal or, complete line by complete line, into files. [`transcript`] shows what was said before. All text
//! of others is made harmless here.

mod call;
mod helpers;
mod live;
mod news;
mod printed;
mod result;
mod screen;
mod transcript;

pub(super) use call::headline;
pub(super) use helpers::Helpers;
pub(super) use live::{Live, Piece};
pub(super) use news::news;
pub(super) use printed::Printed;
pub(super) use result::Length;
use result::result_lines;
pub(super) use screen::Screen;
pub(super) use transcript::{Transcript, message_lines};

use crate::output::{Sink, Style};

/// A line with its emphasis.
pub(super) type Line = (Option<Style>, String);

/// A line as a stream shows it.
pub(super) fn painted(sink: Sink, (style, text): &Line) -> String {
    match style {
        Some(style) => sink.paint(*style, text),
        None => text.clone(),
    }
}

/// The line above a call's result.
pub(super) fn call_line(sink: Sink, tool: &str, detail: &str) -> String {
    let (mark, tool) = (sink.paint(Style::Accent, "⏺"), sink.paint(Style::Bold, tool));
    if detail.is_empty() { format!("{mark} {tool}") } else { format!("{mark} {tool}  {detail}") }
}

/// A result as it stands beneath its call.
pub(super) fn result_block(sink: Sink, lines: &[Line]) -> Vec<String> {
    let mark = sink.paint(Style::Dim, "⎿");
    let shown = lines.iter().enumerate().map(|(index, line)| {
        let lead = if index == 0 { format!("  {mark} ") } else { " ".repeat(4) };
        format!("{lead}{}", painted(sink, line)).trim_end().to_owned()
    });
    shown.collect()
}
