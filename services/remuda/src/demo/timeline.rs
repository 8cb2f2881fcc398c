//! Draws the timeline: rows of blocks over a common time axis.
//!
//! Pure functions from spans to styled text, independent of colours, terminals and events.

use std::time::Duration;

/// Minimum width of the chart; lines wrap on narrower terminals.
const MIN_COLUMNS: usize = 10;
/// Minimum distance of two ticks of the axis.
const TICK_COLUMNS: u64 = 9;

const BLOCK: char = '▇';
const FAILED: (char, char) = ('▒', '✗');
const CANCELLED: (char, char) = ('░', '⊘');
const CALL: char = '─';

/// One row of the timeline.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub label: String,
    /// Index of the session, which determines the colour.
    pub session: usize,
    /// In time order, without overlap.
    pub spans: Vec<Span>,
}

/// A span of time, relative to the left edge of the timeline.
#[derive(Clone, Debug)]
pub(super) struct Span {
    pub from: Duration,
    pub to: Duration,
    /// Written at the start of the block.
    pub name: String,
    pub kind: SpanKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpanKind {
    Completed,
    Failed,
    Cancelled,
    /// A call inside a run.
    Call,
}

/// The meaning of a text, from which the screen chooses the colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    Dim,
    Session(usize),
    Failed,
    Cancelled,
}

/// The styled parts of a line.
pub(super) type Line = Vec<(String, Tone)>;

/// Draws the rows below an axis, at most `width` columns wide if possible.
pub(super) fn draw(rows: &[Row], width: usize) -> Vec<Line> {
    let labels = rows.iter().map(|row| row.label.chars().count()).max().unwrap_or_default();
    let scale = Scale {
        end: rows
            .iter()
            .flat_map(|row| &row.spans)
            .map(|span| micros(span.to))
            .max()
            .unwrap_or_default()
            .max(1),
        columns: width.saturating_sub(labels + 1).max(MIN_COLUMNS),
    };
    let (ticks, rule) = axis(&scale);
    let margin = || (" ".repeat(labels + 1), Tone::Plain);
    let mut lines = vec![vec![margin(), (ticks, Tone::Dim)], vec![margin(), (rule, Tone::Dim)]];
    for row in rows {
        let tone = if row.is_calls() { Tone::Dim } else { Tone::Session(row.session) };
        let mut line = vec![(format!("{:labels$} ", row.label), tone)];
        line.extend(chart(row, &scale));
        lines.push(line);
    }
    lines
}

/// The legend, wrapped to the width.
pub(super) fn legend(width: usize) -> Vec<Line> {
    const GAP: usize = 3;
    let run: String = ['1', BLOCK, BLOCK].iter().collect();
    let marked = |(fill, mark): (char, char)| [fill, fill, mark].iter().collect::<String>();
    let entries = [
        (run, Tone::Session(0), " run 1 of a session"),
        (marked(FAILED), Tone::Failed, " failed"),
        (marked(CANCELLED), Tone::Cancelled, " cancelled"),
        (CALL.to_string().repeat(3), Tone::Dim, " a parallel call"),
    ];
    let mut lines = vec![Line::new()];
    let mut used = 0;
    for (sign, tone, meaning) in entries {
        let columns = sign.chars().count() + meaning.chars().count();
        if used > 0 && used + GAP + columns > width {
            lines.push(Line::new());
            used = 0;
        }
        let gap = if used > 0 { GAP } else { 0 };
        used += gap + columns;
        if let Some(line) = lines.last_mut() {
            line.extend([(" ".repeat(gap), Tone::Plain), (sign, tone), (meaning.to_owned(), Tone::Plain)]);
        }
    }
    lines
}

impl Row {
    fn is_calls(&self) -> bool {
        self.spans.iter().any(|span| span.kind == SpanKind::Call)
    }
}

struct Scale {
    /// The end of the axis in microseconds.
    end: u64,
    columns: usize,
}

impl Scale {
    fn column(&self, at: u64) -> usize {
        let columns = u64::try_from(self.columns).unwrap_or(u64::MAX);
        let column = at.saturating_mul(columns).saturating_add(self.end / 2) / self.end;
        usize::try_from(column).unwrap_or(self.columns).min(self.columns)
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn axis(scale: &Scale) -> (String, String) {
    let columns = u64::try_from(scale.columns).unwrap_or(u64::MAX);
    let closest = scale.end.saturating_mul(TICK_COLUMNS) / columns.max(1);
    let step = steps().find(|step| *step >= closest).unwrap_or(scale.end);
    let (mut labels, mut rule) = (String::new(), vec!['─'; scale.columns]);
    let mut at = 0;
    while at <= scale.end {
        let column = scale.column(at);
        let label = seconds(at);
        if column + label.chars().count() <= scale.columns {
            let written = labels.chars().count();
            labels.push_str(&" ".repeat(column.saturating_sub(written)));
            labels.push_str(&label);
        }
        if let Some(cell) = rule.get_mut(column) {
            *cell = '┬';
        }
        at += step;
    }
    (labels, rule.into_iter().collect())
}

/// Tick distances: 1, 2 and 5 times powers of ten, from one millisecond.
fn steps() -> impl Iterator<Item = u64> {
    (3..12).flat_map(|power| [1, 2, 5].map(|factor| factor * 10_u64.pow(power)))
}

fn seconds(micros: u64) -> String {
    let text = format!("{}.{:03}", micros / 1_000_000, micros % 1_000_000 / 1000);
    format!("{} s", text.trim_end_matches('0').trim_end_matches('.'))
}

/// The blocks of a row as text, without trailing blanks.
fn chart(row: &Row, scale: &Scale) -> Line {
    let mut cells = vec![(' ', Tone::Plain); scale.columns];
    for (span, (start, end)) in row.spans.iter().zip(span_columns(&row.spans, scale)) {
        let (fill, mark, tone) = match span.kind {
            SpanKind::Completed => (BLOCK, None, Tone::Session(row.session)),
            SpanKind::Failed => (FAILED.0, Some(FAILED.1), Tone::Failed),
            SpanKind::Cancelled => (CANCELLED.0, Some(CANCELLED.1), Tone::Cancelled),
            SpanKind::Call => (CALL, None, Tone::Dim),
        };
        let text = span.name.chars().chain(std::iter::repeat(fill));
        for (cell, sign) in cells.iter_mut().take(end).skip(start).zip(text) {
            *cell = (sign, tone);
        }
        if let (Some(mark), Some(last)) = (mark, end.checked_sub(1).and_then(|last| cells.get_mut(last))) {
            *last = (mark, tone);
        }
    }
    let used = cells.iter().rposition(|(sign, _)| *sign != ' ').map_or(0, |last| last + 1);
    let mut line = Line::new();
    for (sign, tone) in cells.into_iter().take(used) {
        match line.last_mut() {
            Some((text, last)) if *last == tone => text.push(sign),
            _ => line.push((sign.to_string(), tone)),
        }
    }
    line
}

/// The columns of each span. Every span is wide enough for its name, and spans never overlap: if necessary they are shifted to
/// the right, and then back from the right edge.
fn span_columns(spans: &[Span], scale: &Scale) -> Vec<(usize, usize)> {
    let min_width = |span: &Span| {
        let marked = matches!(span.kind, SpanKind::Failed | SpanKind::Cancelled);
        (span.name.chars().count() + usize::from(marked)).max(1)
    };
    let mut span_columns = Vec::with_capacity(spans.len());
    let mut free = 0;
    for span in spans {
        let start = scale.column(micros(span.from)).max(free);
        let end = scale.column(micros(span.to)).max(start + min_width(span));
        span_columns.push((start, end));
        free = end;
    }
    let mut limit = scale.columns;
    for (span, (start, end)) in spans.iter().zip(&mut span_columns).rev() {
        *end = (*end).min(limit);
        *start = (*start).min(end.saturating_sub(min_width(span)));
        limit = *start;
    }
    span_columns
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(from: u64, to: u64, name: &str, kind: SpanKind) -> Span {
        Span { from: Duration::from_millis(from), to: Duration::from_millis(to), name: name.into(), kind }
    }

    fn row(label: &str, spans: Vec<Span>) -> Row {
        Row { label: label.into(), session: 0, spans }
    }

    fn plain(lines: &[Line]) -> Vec<String> {
        lines.iter().map(|line| line.iter().map(|(text, _)| text.as_str()).collect()).collect()
    }

    #[test]
    fn rows_show_order_and_parallelism() {
        let rows = [
            row(
                "a/one",
                vec![span(0, 1000, "1", SpanKind::Completed), span(1000, 2000, "2", SpanKind::Completed)],
            ),
            row("  lint", vec![span(1000, 1500, "", SpanKind::Call)]),
            row(
                "b/two",
                vec![span(500, 1000, "1", SpanKind::Failed), span(1000, 2000, "2", SpanKind::Cancelled)],
            ),
        ];
        let lines = plain(&draw(&rows, 47));
        assert_eq!(
            lines,
            [
                "       0 s       0.5 s     1 s       1.5 s",
                "       ┬─────────┬─────────┬─────────┬─────────",
                "a/one  1▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇2▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇",
                "  lint                     ──────────",
                "b/two            1▒▒▒▒▒▒▒▒✗2░░░░░░░░░░░░░░░░░░⊘",
            ]
        );
    }

    #[test]
    fn tones_follow_the_end_state() {
        let rows = [row(
            "a",
            vec![
                span(0, 10, "1", SpanKind::Completed),
                span(10, 20, "2", SpanKind::Failed),
                span(30, 40, "3", SpanKind::Cancelled),
            ],
        )];
        let tones: Vec<Tone> = draw(&rows, 42)[2].iter().map(|(_, tone)| *tone).collect();
        let expected = [Tone::Session(0), Tone::Session(0), Tone::Failed, Tone::Plain, Tone::Cancelled];
        assert_eq!(tones, expected);
    }

    #[test]
    fn very_short_runs_keep_their_number_and_order() {
        let early = (0..5).map(|i| span(i, i + 1, &(i + 1).to_string(), SpanKind::Completed));
        let late = (5..9).map(|i| span(9990 + i, 9991 + i, &(i + 1).to_string(), SpanKind::Failed));
        let lines = plain(&draw(&[row("x", early.chain(late).collect())], 42));
        assert_eq!(lines[2], "x 12345                           6✗7✗8✗9✗");
    }

    #[test]
    fn timeline_fits_every_width() {
        let spans = vec![span(0, 1400, "1", SpanKind::Completed), span(1400, 4200, "2", SpanKind::Completed)];
        let rows = [row("acme/build", spans.clone()), row("globex/report", spans)];
        for width in 24..200 {
            let lines = plain(&draw(&rows, width));
            assert_eq!(lines.iter().map(|line| line.chars().count()).max(), Some(width), "{lines:#?}");
            assert!(lines[0].contains("0 s"), "{lines:#?}");
        }
    }

    #[test]
    fn empty_and_crowded_timelines_are_drawn() {
        assert_eq!(plain(&draw(&[], 0)).len(), 2);
        assert_eq!(plain(&draw(&[row("idle", Vec::new())], 80))[2], "idle ");
        let many = (0..500).map(|i| span(i, i + 1, &i.to_string(), SpanKind::Cancelled)).collect();
        assert_eq!(draw(&[row("crowd", many)], 30).len(), 3);
    }

    #[test]
    fn legend_wraps_between_entries() {
        let one = "1▇▇ run 1 of a session   ▒▒✗ failed   ░░⊘ cancelled   ─── a parallel call";
        assert_eq!(plain(&legend(80)), [one]);
        assert!(plain(&legend(33)).iter().all(|line| line.chars().count() <= 33));
    }

    #[test]
    fn tick_labels_are_short() {
        let shown: Vec<String> = [0, 500_000, 1_000_000, 2_500_000, 20_000_000].map(seconds).into();
        assert_eq!(shown, ["0 s", "0.5 s", "1 s", "2.5 s", "20 s"]);
    }
}
