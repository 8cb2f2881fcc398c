//! Draws a trace as a waterfall: span name in the tree, bar on a common time scale, duration and details.

use std::{collections::HashMap, time::Duration};

use remuda_domain::Timestamp;
use remuda_proto::{convert, v1};

use crate::output::{count, elapsed, one_line};

/// Names are cut to this width.
const NAME_WIDTH: usize = 40;
const DURATION_WIDTH: usize = 9;
/// Minimum and maximum width of bars.
const BAR_WIDTH: (usize, usize) = (16, 60);
/// Width reserved for details on a wide screen.
const DETAIL_WIDTH: usize = 36;

/// One line, split into the parts that have different colours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) name: String,
    pub(super) bar: String,
    pub(super) duration: String,
    pub(super) detail: String,
    pub(super) failed: bool,
}

struct Waterfall<'a> {
    spans: &'a [v1::TraceSpan],
    children: HashMap<&'a str, Vec<usize>>,
    from: Timestamp,
    now: Timestamp,
    scale: Duration,
    width: usize,
    lines: Vec<Line>,
}

/// Draws a trace for a screen with this many columns.
pub(super) fn draw(trace: &v1::GetRunTraceResponse, columns: usize) -> Vec<Line> {
    let spans = &trace.spans;
    let by_id: HashMap<&str, usize> =
        spans.iter().enumerate().map(|(index, span)| (span.span_id.as_str(), index)).collect();
    let (mut roots, mut children): (Vec<usize>, HashMap<&str, Vec<usize>>) = Default::default();
    for (index, span) in spans.iter().enumerate() {
        match by_id.get(span.parent_span_id.as_str()) {
            Some(parent) if *parent != index => children.entry(&span.parent_span_id).or_default().push(index),
            _ => roots.push(index),
        }
    }
    let now = trace.now.as_ref().and_then(convert::from_timestamp).unwrap_or_default();
    let from = spans.iter().filter_map(start).min().unwrap_or(now);
    let until = spans.iter().map(|span| end(span, now)).max().unwrap_or(now);
    let available = columns.saturating_sub(NAME_WIDTH + DURATION_WIDTH + DETAIL_WIDTH + 4);
    let mut waterfall = Waterfall {
        spans,
        children,
        from,
        now,
        scale: (until - from).to_std().unwrap_or_default().max(Duration::from_micros(1)),
        width: available.clamp(BAR_WIDTH.0, BAR_WIDTH.1),
        lines: Vec::with_capacity(spans.len()),
    };
    for root in roots {
        waterfall.add_span(root, "", "");
    }
    waterfall.lines
}

fn start(span: &v1::TraceSpan) -> Option<Timestamp> {
    span.started_at.as_ref().and_then(convert::from_timestamp)
}

fn end(span: &v1::TraceSpan, now: Timestamp) -> Timestamp {
    span.ended_at.as_ref().and_then(convert::from_timestamp).unwrap_or(now)
}

impl Waterfall<'_> {
    /// Adds a span and its children. `prefix` precedes its name, `child_prefix` the names of its children.
    fn add_span(&mut self, index: usize, prefix: &str, child_prefix: &str) {
        let span = &self.spans[index];
        let (start, end) = (start(span).unwrap_or(self.from), end(span, self.now));
        let duration = (end - start).to_std().unwrap_or_default();
        let open = span.ended_at.is_none();
        self.lines.push(Line {
            name: fit_width(&format!("{prefix}{}", one_line(&title(span))), NAME_WIDTH),
            bar: self.bar((start - self.from).to_std().unwrap_or_default(), duration, open),
            duration: format!("{:>DURATION_WIDTH$}", elapsed(duration)),
            detail: one_line(&detail(span)),
            failed: !span.failure.is_empty(),
        });
        let children = self.children.remove(span.span_id.as_str()).unwrap_or_default();
        let last = children.len();
        for (position, index) in children.into_iter().enumerate() {
            let (branch, continuation) = if position + 1 == last { ("└ ", "  ") } else { ("├ ", "│ ") };
            self.add_span(
                index,
                &format!("{child_prefix}{branch}"),
                &format!("{child_prefix}{continuation}"),
            );
        }
    }

    /// Whole columns only: not all terminals show blocks of eighths.
    fn bar(&self, offset: Duration, duration: Duration, open: bool) -> String {
        let columns = |time: Duration| {
            let share = time.as_secs_f64() / self.scale.as_secs_f64();
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a share of the width"
            )]
            let columns = (share * self.width as f64).round() as usize;
            columns.min(self.width)
        };
        let before = columns(offset).min(self.width - 1);
        let length = columns(duration).clamp(1, self.width - before);
        let mut bar = " ".repeat(before);
        // A very short span is a thin mark.
        bar += &if columns(duration) == 0 { "▏".to_owned() } else { "█".repeat(length) };
        if open {
            bar.pop();
            bar.push('▶');
        }
        bar += &" ".repeat(self.width - before - length);
        bar
    }
}

/// Pads or cuts the text to exactly this width.
fn fit_width(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return format!("{text}{}", " ".repeat(width - length));
    }
    text.chars().take(width - 1).chain(['…']).collect()
}

fn attribute<'a>(span: &'a v1::TraceSpan, name: &str) -> Option<&'a str> {
    span.attributes.get(name).map(String::as_str)
}

fn title(span: &v1::TraceSpan) -> String {
    match (span.name.as_str(), attribute(span, "remuda.run.attempt")) {
        ("attempt", Some(number)) => format!("attempt {number}"),
        (name, _) => name.to_owned(),
    }
}

/// The failure, or else tokens, cost, exit code, sandbox, worker and run.
fn detail(span: &v1::TraceSpan) -> String {
    if !span.failure.is_empty() {
        return format!("✗ {}", span.failure);
    }
    let number = |name: &str| attribute(span, name).and_then(|text| text.parse::<u64>().ok());
    let mut parts = Vec::new();
    if let (Some(input), Some(output)) =
        (number("gen_ai.usage.input_tokens"), number("gen_ai.usage.output_tokens"))
    {
        parts.push(format!("{} in, {} out", count(input), count(output)));
    }
    let cost = attribute(span, "remuda.cost_usd").and_then(|text| text.parse::<f64>().ok());
    parts.extend(cost.filter(|cost| *cost > 0.0).map(|cost| format!("${cost:.4}")));
    parts.extend(attribute(span, "process.exit.code").map(|code| format!("exit {code}")));
    parts.extend(attribute(span, "remuda.sandbox.id").map(ToOwned::to_owned));
    parts.extend(attribute(span, "remuda.worker.id").map(ToOwned::to_owned));
    parts.extend(
        attribute(span, "remuda.run.id").filter(|_| span.name.starts_with("run ")).map(ToOwned::to_owned),
    );
    parts.join(" · ")
}

#[cfg(test)]
mod tests;
