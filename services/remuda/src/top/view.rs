//! A frame from what is known. Pure: the same knowledge gives the same frame, on a terminal and as text.

mod over;
mod sheet;

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
    data::{Look, Panel, Rates},
    state::{Link, Mode, State},
};
use crate::output::{count, elapsed, one_line};

/// How much something matters, and in what way.
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
pub(crate) struct Screen<'a> {
    pub(crate) look: &'a Look,
    pub(crate) rates: Option<Rates>,
    pub(crate) state: &'a State,
    pub(crate) endpoint: &'a str,
    pub(crate) color: bool,
    /// Whether somebody can press keys.
    pub(crate) keys: bool,
}

/// The lines above the panels.
const HEADER: u16 = 3;
const FOOTER: u16 = 1;

impl Screen<'_> {
    /// Without colour, what matters is bold and what does not is as it is.
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

    /// Rows that a frame needs to show everything.
    pub(crate) fn full_height(&self) -> u16 {
        let rows = |panel| match sheet::sheet(self, panel).rows.len() {
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
        over::draw(self, area, buffer);
    }

    /// How far a text over the lists can be scrolled.
    pub(crate) fn last_scroll(&self, area: Rect) -> u16 {
        over::last_scroll(self, area)
    }

    fn header(&self, area: Rect, buffer: &mut Buffer) {
        let answer = &self.look.0;
        let server = format!("{}  {} {}", self.endpoint, answer.mode, answer.version);
        Line::from(vec![
            self.span(Tone::Bold, "remuda top"),
            Span::raw("  "),
            self.span(Tone::Plain, server),
        ])
        .render(area, buffer);
        let (tone, link) = match &self.state.link {
            Link::Lost { for_, error } => (Tone::Bad, format!("reconnecting for {}: {error}", age(*for_))),
            Link::Silent(for_) => (Tone::Warn, format!("no answer for {}", age(*for_))),
            Link::Live if self.state.paused => (Tone::Warn, "paused".to_owned()),
            Link::Live => (Tone::Good, "live".to_owned()),
        };
        let time = self.look.now().with_timezone(&chrono::Local).format("%H:%M:%S").to_string();
        let link: String = one_line(&link).chars().take(usize::from(area.width / 2)).collect();
        let right =
            Line::from(vec![Span::raw("  "), Span::raw(time), Span::raw("  "), self.span(tone, link)]);
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
            let counts = self.look.0.counts.unwrap_or_default();
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
        let sheets = Panel::ALL.map(|panel| sheet::sheet(self, panel));
        let rows = allocate(area.height, std::array::from_fn(|at| sheets[at].rows.len()));
        let mut y = area.y;
        for (sheet, rows) in sheets.into_iter().zip(rows) {
            if y >= area.bottom() {
                break;
            }
            let left = area.bottom() - y;
            let needed = if sheet.rows.is_empty() { 1 } else { 2 + rows };
            let height = needed.min(left);
            self.panel(sheet, Rect { y, height, ..area }, buffer);
            // An empty line between panels, where there is one.
            y += height + u16::from(left > height);
        }
    }

    fn panel(&self, sheet: sheet::Sheet, area: Rect, buffer: &mut Buffer) {
        let panel = sheet.panel;
        let has_focus = self.keys && self.state.panel() == panel;
        let room = usize::from(area.height.saturating_sub(2));
        let mut title = vec![match has_focus {
            true => Span::styled(
                format!(" {} ", panel.title()),
                Style::new().add_modifier(Modifier::REVERSED | Modifier::BOLD),
            ),
            false => self.span(Tone::Bold, panel.title()),
        }];
        let order = self.state.order(panel);
        let about = match sheet.rows.len() {
            0 => "  none".to_owned(),
            all if all > room => format!("  {room} of {all}, by {}", order.as_str()),
            all => format!("  {all}, by {}", order.as_str()),
        };
        title.push(self.span(Tone::Dim, about));
        title.extend(sheet.note.map(|note| self.span(Tone::Warn, format!("  {note}"))));
        Line::from(title).render(Rect { height: 1, ..area }, buffer);
        if area.height < 2 || sheet.rows.is_empty() {
            return;
        }
        let keys = self.state.keys(panel, self.look);
        let selected = self.state.selected(panel, &keys);
        let header = Row::new(sheet.header).style(self.style(Tone::Dim));
        let table = Table::new(sheet.rows, sheet.widths)
            .header(header)
            .column_spacing(1)
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        let mut state = TableState::new().with_selected(has_focus.then_some(selected));
        let below = Rect { y: area.y + 1, height: area.height - 1, ..area };
        StatefulWidget::render(table, below, buffer, &mut state);
    }
}

/// How many rows each panel may show: what it wants, or its share of what there is. A panel with rows has two lines more, one without
/// has one, and there is an empty line between two.
fn allocate(height: u16, wanted: [usize; 4]) -> [u16; 4] {
    let fixed: u16 = wanted.iter().map(|rows| if *rows == 0 { 2 } else { 3 }).sum();
    let mut left = (height + 1).saturating_sub(fixed);
    let mut given = [0; 4];
    loop {
        let before = left;
        for (given, wanted) in given.iter_mut().zip(wanted) {
            if left > 0 && usize::from(*given) < wanted {
                *given += 1;
                left -= 1;
            }
        }
        if left == before {
            return given;
        }
    }
}

/// A time in whole seconds, so that a screen does not flicker.
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

/// A number of a table, at its right edge.
fn right(span: Span<'static>) -> Line<'static> {
    Line::from(span).alignment(Alignment::Right)
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
