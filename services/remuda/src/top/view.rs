//! Draws a frame from overview and state, for a terminal or as text. A pure function: the same input gives the same frame.

mod popup;
mod tables;

use std::time::Duration;

use ratatui::{
    buffer::Buffer,
    layout::{Alignment, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Row, StatefulWidget, Table, TableState, Widget as _},
};
use remuda_domain::money::dollars;

use super::{
    data::{Overview, Panel, Rates},
    state::{ConnectionState, Mode, State},
};
use crate::output::{count, elapsed, one_line};

/// Text styles, named by meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Good,
    Bad,
    Warn,
    Accent,
    Dim,
    Bold,
}

/// Everything that a frame shows.
#[derive(Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) overview: &'a Overview,
    pub(crate) rates: Option<Rates>,
    pub(crate) state: &'a State,
    pub(crate) endpoint: &'a str,
    pub(crate) color: bool,
    /// Whether the frame is interactive and shows the keys.
    pub(crate) keys: bool,
}

/// Lines above the panels.
const HEADER: u16 = 3;
const FOOTER: u16 = 1;

impl Frame<'_> {
    /// The style of a tone. Modifiers such as bold also work without colour.
    fn style(&self, tone: Tone) -> Style {
        let style = Style::new();
        let colored = |color| if self.color { style.fg(color) } else { style };
        match tone {
            Tone::Plain => style,
            Tone::Good => colored(Color::Green),
            Tone::Bad => colored(Color::Red).add_modifier(Modifier::BOLD),
            Tone::Warn => colored(Color::Yellow),
            Tone::Accent => colored(Color::Cyan),
            Tone::Dim => style.add_modifier(Modifier::DIM),
            Tone::Bold => style.add_modifier(Modifier::BOLD),
        }
    }

    fn span(&self, tone: Tone, text: impl AsRef<str>) -> Span<'static> {
        Span::styled(one_line(text.as_ref()), self.style(tone))
    }

    /// Height of a frame that shows everything.
    pub(crate) fn full_height(&self) -> u16 {
        let rows = |panel| match tables::table(self, panel).rows.len() {
            0 => 2,
            rows => rows + 3,
        };
        let rows: usize = Panel::ALL.into_iter().map(rows).sum();
        HEADER.saturating_add(u16::try_from(rows).unwrap_or(u16::MAX))
    }

    pub(crate) fn draw(&self, area: Rect, buffer: &mut Buffer) {
        if area.height == 0 {
            return;
        }
        let line = |row: u16| Rect { y: area.y + row.min(area.height - 1), height: 1, ..area };
        self.header(line(0), buffer);
        if area.height > 2 {
            self.rates().render(line(1), buffer);
        }
        let footer = if self.keys { FOOTER } else { 0 };
        let taken = HEADER + footer;
        if area.height > taken {
            let panels = Rect { y: area.y + HEADER, height: area.height - taken, ..area };
            self.panels(panels, buffer);
        }
        if self.keys && area.height > 1 {
            self.footer().render(line(area.height - 1), buffer);
        }
        popup::draw(self, area, buffer);
    }

    /// The last scroll position of the popup.
    pub(crate) fn last_scroll(&self, area: Rect) -> u16 {
        popup::last_scroll(self, area)
    }

    fn header(&self, area: Rect, buffer: &mut Buffer) {
        let answer = &self.overview.0;
        let server = format!("{}  {} {}", self.endpoint, answer.mode, answer.version);
        Line::from(vec![
            self.span(Tone::Bold, "remuda top"),
            Span::raw("  "),
            self.span(Tone::Plain, server),
        ])
        .render(area, buffer);
        let (tone, connection) = match &self.state.connection {
            ConnectionState::Lost { for_, error } => {
                (Tone::Bad, format!("reconnecting for {}: {error}", age(*for_)))
            }
            ConnectionState::Slow(for_) => (Tone::Warn, format!("no answer for {}", age(*for_))),
            ConnectionState::Connected if self.state.paused => (Tone::Warn, "paused".to_owned()),
            ConnectionState::Connected => (Tone::Good, "live".to_owned()),
        };
        let time = self.overview.now().with_timezone(&chrono::Local).format("%H:%M:%S").to_string();
        let connection: String = one_line(&connection).chars().take(usize::from(area.width / 2)).collect();
        let right =
            Line::from(vec![Span::raw("  "), Span::raw(time), Span::raw("  "), self.span(tone, connection)]);
        let width = u16::try_from(right.width()).unwrap_or(area.width).min(area.width);
        right.render(Rect { x: area.right() - width, width, ..area }, buffer);
    }

    fn rates(&self) -> Line<'static> {
        let mut spans = Vec::new();
        let mut push = |tone, text: String, name: &str| {
            spans.extend([
                self.span(tone, text),
                Span::raw(" "),
                self.span(Tone::Dim, name),
                Span::raw("  "),
            ]);
        };
        let Some(rates) = self.rates else {
            let counts = self.overview.0.counts.unwrap_or_default();
            push(Tone::Bold, count(counts.submitted), "submitted");
            push(Tone::Bold, count(counts.completed), "completed");
            let ends =
                [(counts.failed, "failed"), (counts.timed_out, "timed out"), (counts.cancelled, "cancelled")];
            for (number, name) in ends.into_iter().filter(|(number, _)| *number > 0) {
                push(Tone::Bold, count(number), name);
            }
            push(Tone::Bold, count(counts.input_tokens + counts.output_tokens), "tokens");
            push(Tone::Bold, dollars(counts.cost_micros), "so far");
            return Line::from(spans);
        };
        push(Tone::Bold, rate(rates.submitted), "submitted/s");
        push(Tone::Bold, rate(rates.completed), "completed/s");
        let ends =
            [(rates.failed, "failed/s"), (rates.timed_out, "timed out/s"), (rates.cancelled, "cancelled/s")];
        for (number, name) in ends.into_iter().filter(|(number, _)| *number > 0.0) {
            push(if name == "cancelled/s" { Tone::Warn } else { Tone::Bad }, rate(number), name);
        }
        push(Tone::Bold, rate(rates.tokens), "tokens/min");
        push(Tone::Bold, format!("${:.2}", rates.dollars), "/min");
        Line::from(spans)
    }

    fn footer(&self) -> Line<'static> {
        let state = self.state;
        let mut spans = Vec::new();
        match (&state.mode, &state.notice) {
            (Mode::Filter, _) => {
                spans.extend([self.span(Tone::Bold, format!("/{}▏", state.filter))]);
                spans.push(self.span(Tone::Dim, "  enter keeps the filter, esc clears it"));
            }
            (Mode::Confirm(run), _) => {
                spans.push(self.span(Tone::Bad, format!("cancel {run}?")));
                spans.push(self.span(Tone::Bold, "  y/n"));
            }
            (_, Some(notice)) => spans.push(self.span(Tone::Warn, notice)),
            _ => {
                if !state.filter.is_empty() {
                    spans.push(self.span(Tone::Warn, format!("/{}  ", state.filter)));
                }
                let keys = [
                    ("q", "quit"),
                    ("?", "help"),
                    ("tab", "panel"),
                    ("↑↓", "select"),
                    ("enter", "explain"),
                    ("c", "cancel"),
                    ("p", "pause"),
                    ("s", "sort"),
                    ("/", "filter"),
                ];
                for (key, what) in keys {
                    spans.extend([self.span(Tone::Accent, key), self.span(Tone::Dim, format!(" {what}  "))]);
                }
            }
        }
        Line::from(spans)
    }

    fn panels(&self, area: Rect, buffer: &mut Buffer) {
        let tables = Panel::ALL.map(|panel| tables::table(self, panel));
        let rows = allocate_rows(area.height, std::array::from_fn(|at| tables[at].rows.len()));
        let mut y = area.y;
        for (table, rows) in tables.into_iter().zip(rows) {
            if y >= area.bottom() {
                break;
            }
            let left = area.bottom() - y;
            let needed = if table.rows.is_empty() { 1 } else { 2 + rows };
            let height = needed.min(left);
            self.panel(table, Rect { y, height, ..area }, buffer);
            // An empty line between panels, if there is space.
            y += height + u16::from(left > height);
        }
    }

    fn panel(&self, data: tables::PanelTable, area: Rect, buffer: &mut Buffer) {
        let panel = data.panel;
        let has_focus = self.keys && self.state.panel() == panel;
        let visible = usize::from(area.height.saturating_sub(2));
        let mut title = vec![match has_focus {
            true => Span::styled(
                format!(" {} ", panel.title()),
                Style::new().add_modifier(Modifier::REVERSED | Modifier::BOLD),
            ),
            false => self.span(Tone::Bold, panel.title()),
        }];
        let order = self.state.order(panel);
        let about = match data.rows.len() {
            0 => "  none".to_owned(),
            all if all > visible => format!("  {visible} of {all}, by {}", order.as_str()),
            all => format!("  {all}, by {}", order.as_str()),
        };
        title.push(self.span(Tone::Dim, about));
        title.extend(data.note.map(|note| self.span(Tone::Warn, format!("  {note}"))));
        Line::from(title).render(Rect { height: 1, ..area }, buffer);
        if area.height < 2 || data.rows.is_empty() {
            return;
        }
        let keys = self.state.keys(panel, self.overview);
        let selected = self.state.selected(panel, &keys);
        let header = Row::new(data.header).style(self.style(Tone::Dim));
        let table = Table::new(data.rows, data.widths)
            .header(header)
            .column_spacing(1)
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        let mut state = TableState::new().with_selected(has_focus.then_some(selected));
        let below = Rect { y: area.y + 1, height: area.height - 1, ..area };
        StatefulWidget::render(table, below, buffer, &mut state);
    }
}

/// The number of rows for each panel: what it needs, or its share of the height. A panel with rows has two more lines, a panel without
/// rows has one, and there is an empty line between panels.
fn allocate_rows(height: u16, needed: [usize; 4]) -> [u16; 4] {
    let fixed: u16 = needed.iter().map(|rows| if *rows == 0 { 2 } else { 3 }).sum();
    let mut left = (height + 1).saturating_sub(fixed);
    let mut allocated = [0; 4];
    loop {
        let before = left;
        for (allocated, needed) in allocated.iter_mut().zip(needed) {
            if left > 0 && usize::from(*allocated) < needed {
                *allocated += 1;
                left -= 1;
            }
        }
        if left == before {
            return allocated;
        }
    }
}

/// A duration in whole seconds, so that the screen does not flicker.
fn age(duration: Duration) -> String {
    elapsed(Duration::from_secs(duration.as_secs())).replace(".0 s", " s").replace("0 ms", "0 s")
}

fn rate(number: f64) -> String {
    match number {
        ..0.005 => "0".to_owned(),
        ..10.0 => format!("{number:.1}"),
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "rounded, and not below zero"
        )]
        _ => count(number.round() as u64),
    }
}

/// A right-aligned table cell.
fn right(span: Span<'static>) -> Line<'static> {
    Line::from(span).alignment(Alignment::Right)
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
