//! Plain tables for humans.

use comfy_table::{Attribute, Cell, Color, ContentArrangement, presets};

use super::{Sink, Style, one_line};

/// Width if stdout is not a terminal.
const DEFAULT_COLUMNS: usize = 120;

/// The width of the terminal, or the default if stdout is not one.
pub(crate) fn columns() -> usize {
    comfy_table::Table::new().width().map_or(DEFAULT_COLUMNS, usize::from)
}

/// A table without borders. Cells are sanitized here.
#[derive(Debug)]
pub(crate) struct Table {
    table: comfy_table::Table,
    sink: Sink,
}

impl Table {
    pub(crate) fn new(sink: Sink, header: &[&str]) -> Self {
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        if sink.color {
            table.enforce_styling();
        }
        let cells = header.iter().map(|name| Self::styled(sink, name, Some(Style::Bold)));
        table.set_header(cells.collect::<Vec<_>>());
        Self { table, sink }
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [(String, Option<Style>); N]) {
        let cells = cells.into_iter().map(|(text, style)| Self::styled(self.sink, &text, style));
        self.table.add_row(cells.collect::<Vec<_>>());
    }

    fn styled(sink: Sink, text: &str, style: Option<Style>) -> Cell {
        let cell = Cell::new(one_line(text));
        let Some(style) = style.filter(|_| sink.color) else { return cell };
        match style {
            Style::Good => cell.fg(Color::Green),
            Style::Bad => cell.fg(Color::Red),
            Style::Warn => cell.fg(Color::Yellow),
            Style::Accent => cell.fg(Color::Cyan),
            Style::Dim => cell.add_attribute(Attribute::Dim),
            Style::Bold => cell.add_attribute(Attribute::Bold),
        }
    }

    pub(crate) fn print(&self) {
        for line in self.table.lines() {
            // The left padding of the first column.
            let line = line.trim_end();
            self.sink.line(line.strip_prefix(' ').unwrap_or(line));
        }
    }
}
