//! Draws the popup over the panels: help, or the explanation of a run.

use ratatui::{
    buffer::Buffer,
    layout::Rect,
    text::Line,
    widgets::{Block, Clear, Padding, Paragraph, Widget as _, Wrap},
};

use super::{Frame, Tone};
use crate::{output::one_line, top::state::Mode};

const HELP: &[&str] = &[
    "q, Ctrl-C      quit",
    "tab, shift-tab next, previous panel",
    "↑ ↓, j k       select a row; page up, page down, g G jump",
    "enter          explain the selected run, with its steps",
    "c              cancel the selected run, after confirmation",
    "p, space       pause or resume",
    "r              refresh now",
    "s              change the sort order of the panel",
    "/              filter by run, session, agent, reason, pool or host; esc clears",
    "?              this help",
    "",
    "Runs are those of your tenant; pools, workers and rates cover all tenants.",
    "Running sessions and used slots are as of the workers' last heartbeats.",
];

pub(super) fn draw(frame: &Frame<'_>, area: Rect, buffer: &mut Buffer) {
    match &frame.state.mode {
        Mode::Help => {
            let lines = HELP.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
            draw_popup(frame, "keys", &lines, 0, area, buffer);
        }
        Mode::Popup(popup) => draw_popup(frame, &popup.title, &popup.lines, popup.scroll, area, buffer),
        Mode::Panels | Mode::Filter | Mode::Confirm(_) => {}
    }
}

/// The last scroll position of the popup, at which its last row is visible.
pub(super) fn last_scroll(frame: &Frame<'_>, area: Rect) -> u16 {
    let Mode::Popup(popup) = &frame.state.mode else { return 0 };
    let (popup_area, rows) = popup_area(&paragraph(&popup.lines), area);
    rows.saturating_sub(popup_area.height.saturating_sub(BORDERS))
}

/// Rows or columns of the border.
const BORDERS: u16 = 2;

fn paragraph(lines: &[String]) -> Paragraph<'static> {
    let text: Vec<Line<'_>> = lines.iter().map(|line| Line::raw(one_line(line))).collect();
    Paragraph::new(text).wrap(Wrap { trim: false })
}

/// The area of the popup, high enough for the wrapped text if possible, and the number of rows of the text.
fn popup_area(text: &Paragraph<'_>, area: Rect) -> (Rect, u16) {
    let width = area.width.saturating_sub(4).min(110);
    // The padding takes a column on each side.
    let rows = text.line_count(width.saturating_sub(BORDERS + 2).max(1));
    let rows = u16::try_from(rows).unwrap_or(u16::MAX);
    let height = rows.saturating_add(BORDERS).min(area.height.saturating_sub(2));
    let popup = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height.saturating_sub(height)) / 2,
        width,
        height,
    };
    (popup, rows)
}

fn draw_popup(
    frame: &Frame<'_>,
    title: &str,
    lines: &[String],
    scroll: u16,
    area: Rect,
    buffer: &mut Buffer,
) {
    let text = paragraph(lines);
    let (popup, _) = popup_area(&text, area);
    let block = Block::bordered()
        .title(Line::from(frame.span(Tone::Bold, format!(" {title} "))))
        .title_bottom(Line::from(frame.span(Tone::Dim, " esc closes, ↑↓ scroll ")))
        .padding(Padding::horizontal(1));
    Clear.render(popup, buffer);
    text.scroll((scroll, 0)).block(block).render(popup, buffer);
}
