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

/// How far the text that is drawn over the lists can be scrolled: until its last row is the last one that is seen.
pub(super) fn last_scroll(screen: &Screen<'_>, area: Rect) -> u16 {
    let Mode::Popup(popup) = &screen.state.mode else { return 0 };
    let (place, rows) = place(&paragraph(&popup.lines), area);
    rows.saturating_sub(place.height.saturating_sub(BORDERS))
}

/// Rows or columns that the border takes.
const BORDERS: u16 = 2;

fn paragraph(lines: &[String]) -> Paragraph<'static> {
    let text: Vec<Line<'_>> = lines.iter().map(|line| Line::raw(one_line(line))).collect();
    Paragraph::new(text).wrap(Wrap { trim: false })
}

/// Where a text is drawn, as high as it is once it is wrapped if there is room, and how many rows it has.
fn place(text: &Paragraph<'_>, area: Rect) -> (Rect, u16) {
    let width = area.width.saturating_sub(4).min(110);
    // There is an empty column on each side.
    let rows = text.line_count(width.saturating_sub(BORDERS + 2).max(1));
    let rows = u16::try_from(rows).unwrap_or(u16::MAX);
    let height = rows.saturating_add(BORDERS).min(area.height.saturating_sub(2));
    let place = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height.saturating_sub(height)) / 2,
        width,
        height,
    };
    (place, rows)
}

fn boxed(screen: &Screen<'_>, title: &str, lines: &[String], scroll: u16, area: Rect, buffer: &mut Buffer) {
    let text = paragraph(lines);
    let (place, _) = place(&text, area);
    let block = Block::bordered()
        .title(Line::from(screen.span(Tone::Bold, format!(" {title} "))))
        .title_bottom(Line::from(screen.span(Tone::Dim, " esc closes, ↑↓ scroll ")))
        .padding(Padding::horizontal(1));
    Clear.render(place, buffer);
    text.scroll((scroll, 0)).block(block).render(place, buffer);
}
