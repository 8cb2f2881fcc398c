//! What is drawn over the lists: help, and what was said of a run.

use ratatui::{
    buffer::Buffer,
    layout::Rect,
    text::Line,
    widgets::{Block, Clear, Padding, Paragraph, Widget as _, Wrap},
};

use super::{Screen, Tone};
use crate::{output::one_line, top::state::Mode};

const HELP: &[&str] = &[
    "q, Ctrl-C      quit",
    "tab, shift-tab next, previous panel",
    "↑ ↓, j k       select a row; page up, page down, g G jump",
    "enter          explain the selected run, with its steps",
    "c              cancel the selected run, after a question",
    "p, space       pause, and go on",
    "r              refresh now",
    "s              sort the panel by something else",
    "/              filter by run, session, agent, reason, pool or host; esc clears",
    "?              this help",
    "",
    "Runs are your tenant's; pools, workers and rates are everybody's.",
    "Running ones and used slots are as of the workers' last heartbeats.",
];

pub(super) fn draw(screen: &Screen<'_>, area: Rect, buffer: &mut Buffer) {
    match &screen.state.mode {
        Mode::Help => {
            let lines = HELP.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
            boxed(screen, "keys", &lines, 0, area, buffer);
        }
        Mode::Popup(popup) => boxed(screen, &popup.title, &popup.lines, popup.scroll, area, buffer),
        Mode::Lists | Mode::Filter | Mode::Confirm(_) => {}
    }
}

fn boxed(screen: &Screen<'_>, title: &str, lines: &[String], scroll: u16, area: Rect, buffer: &mut Buffer) {
    let width = area.width.saturating_sub(4).min(110);
    let inner = usize::from(width.saturating_sub(4)).max(1);
    // As high as the text, once it is wrapped.
    let wrapped: usize =
        lines.iter().map(|line| Line::raw(line.as_str()).width().div_ceil(inner).max(1)).sum();
    let height = u16::try_from(wrapped + 2).unwrap_or(u16::MAX).min(area.height.saturating_sub(2));
    let place = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height.saturating_sub(height)) / 2,
        width,
        height,
    };
    let text: Vec<Line<'_>> = lines.iter().map(|line| Line::raw(one_line(line))).collect();
    let block = Block::bordered()
        .title(Line::from(screen.span(Tone::Bold, format!(" {title} "))))
        .title_bottom(Line::from(screen.span(Tone::Dim, " esc closes, ↑↓ scroll ")))
        .padding(Padding::horizontal(1));
    Clear.render(place, buffer);
    Paragraph::new(text).wrap(Wrap { trim: false }).scroll((scroll, 0)).block(block).render(place, buffer);
}
