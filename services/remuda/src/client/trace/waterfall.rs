//! A trace as lines: a name with its place in the tree, a bar on a common scale, what it took, and what else is known.

use std::{collections::HashMap, time::Duration};

use remuda_domain::Timestamp;
use remuda_proto::{convert, v1};

use crate::output::{count, elapsed, one_line};

/// Names are cut to this.
const NAME_WIDTH: usize = 40;
const TOOK_WIDTH: usize = 9;
/// What bars have at least and at most.
const BAR_WIDTH: (usize, usize) = (16, 60);
/// What is left for details on a wide screen.
const DETAIL_WIDTH: usize = 36;

/// One line, in parts that are coloured differently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) name: String,
    pub(super) bar: String,
    pub(super) took: String,
    pub(super) detail: String,
    pub(super) failed: bool,
}

struct Drawing<'a> {
    spans: &'a [v1::TraceSpan],
    below: HashMap<&'a str, Vec<usize>>,
    from: Timestamp,
    now: Timestamp,
    scale: Duration,
    width: usize,
    lines: Vec<Line>,
}

/// Draws a trace for a screen of so many columns.
pub(super) fn draw(trace: &v1::GetRunTraceResponse, columns: usize) -> Vec<Line> {
    let spans = &trace.spans;
    let known: HashMap<&str, usize> =
        spans.iter().enumerate().map(|(index, span)| (span.span_id.as_str(), index)).collect();
    let (mut roots, mut below): (Vec<usize>, HashMap<&str, Vec<usize>>) = Default::default();
    for (index, span) in spans.iter().enumerate() {
        match known.get(span.parent_span_id.as_str()) {
            Some(parent) if *parent != index => below.entry(&span.parent_span_id).or_default().push(index),
            _ => roots.push(index),
        }
    }
    let now = trace.now.as_ref().and_then(convert::from_timestamp).unwrap_or_default();
    let from = spans.iter().filter_map(start).min().unwrap_or(now);
    let until = spans.iter().map(|span| end(span, now)).max().unwrap_or(now);
    let room = columns.saturating_sub(NAME_WIDTH + TOOK_WIDTH + DETAIL_WIDTH + 4);
    let mut drawing = Drawing {
        spans,
        below,
        from,
        now,
        scale: (until - from).to_std().unwrap_or_default().max(Duration::from_micros(1)),
        width: room.clamp(BAR_WIDTH.0, BAR_WIDTH.1),
        lines: Vec::with_capacity(spans.len()),
    };
    for root in roots {
        drawing.branch(root, "", "");
    }
    drawing.lines
}

fn start(span: &v1::TraceSpan) -> Option<Timestamp> {
    span.started_at.as_ref().and_then(convert::from_timestamp)
}

fn end(span: &v1::TraceSpan, now: Timestamp) -> Timestamp {
    span.ended_at.as_ref().and_then(convert::from_timestamp).unwrap_or(now)
}

impl Drawing<'_> {
    /// A span, and what is below it. `own` stands before its name, `rest` before the names below it.
    fn branch(&mut self, index: usize, own: &str, rest: &str) {
        let span = &self.spans[index];
        let (start, end) = (start(span).unwrap_or(self.from), end(span, self.now));
        let took = (end - start).to_std().unwrap_or_default();
        let open = span.ended_at.is_none();
        self.lines.push(Line {
            name: fitted(&format!("{own}{}", one_line(&title(span))), NAME_WIDTH),
            bar: self.bar((start - self.from).to_std().unwrap_or_default(), took, open),
            took: format!("{:>TOOK_WIDTH$}", elapsed(took)),
            detail: one_line(&detail(span)),
            failed: !span.failure.is_empty(),
        });
        let below = self.below.remove(span.span_id.as_str()).unwrap_or_default();
        let last = below.len();
        for (place, index) in below.into_iter().enumerate() {
            let (branch, go_on) = if place + 1 == last { ("└ ", "  ") } else { ("├ ", "│ ") };
            self.branch(index, &format!("{rest}{branch}"), &format!("{rest}{go_on}"));
        }
    }

    /// A bar in eighths of a column would look finer, but not everywhere.
    fn bar(&self, offset: Duration, took: Duration, open: bool) -> String {
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
        let length = columns(took).clamp(1, self.width - before);
        let mut bar = " ".repeat(before);
        // What takes no time to speak of is a point.
        bar += &if columns(took) == 0 { "▏".to_owned() } else { "█".repeat(length) };
        if open {
            bar.pop();
            bar.push('▶');
        }
        bar += &" ".repeat(self.width - before - length);
        bar
    }
}

/// Exactly so wide.
fn fitted(text: &str, width: usize) -> String {
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

/// What is worth a look: why it failed, else tokens and money, exit codes, who did it.
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
