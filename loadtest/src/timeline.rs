//! The SVG timeline of a fault test: rates over time, with the faults as bands.

use std::{fmt::Write as _, ops::Range};

use crate::{
    observed_history::Micros,
    recovery::{Fault, Recovery},
    svg_chart::{STYLE, begin, escape, push_line, text},
};

const WIDTH: f64 = 1200.0;
const HEIGHT: f64 = 460.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 16.0;
/// Space for the title and the rotated labels of the faults.
const TOP: f64 = 130.0;
const BOTTOM: f64 = 44.0;
const SECOND: Micros = 1_000_000;
/// More buckets would be narrower than two pixels.
const MAX_BUCKETS: i64 = 600;

const COLOURS: &str = "
.fault{fill:#d73a49;opacity:.16}.label{fill:#b31d28;font-size:10px}.recovered{stroke:#d73a49;stroke-dasharray:3 3;opacity:.7}
.ended{stroke:#1a7f37}.submitted{stroke:#0969da}.errors{stroke:#bf8700}
.key-ended{fill:#1a7f37}.key-submitted{fill:#0969da}.key-errors{fill:#bf8700}
@media(prefers-color-scheme:dark){.fault{fill:#f85149;opacity:.24}.label{fill:#ff7b72}\
.ended{stroke:#3fb950}.submitted{stroke:#58a6ff}.errors{stroke:#d29922}\
.key-ended{fill:#3fb950}.key-submitted{fill:#58a6ff}.key-errors{fill:#d29922}}";

/// The data of the timeline.
#[derive(Debug)]
pub(crate) struct Timeline<'a> {
    pub(crate) title: &'a str,
    pub(crate) load: Range<Micros>,
    pub(crate) ended: &'a [Micros],
    pub(crate) submitted: &'a [Micros],
    /// Failed attempts of clients.
    pub(crate) errors: &'a [Micros],
    pub(crate) faults: &'a [Fault],
    /// One per fault, or empty.
    pub(crate) recoveries: &'a [Recovery],
}

/// Draws the timeline.
pub(crate) fn svg(timeline: &Timeline<'_>) -> String {
    let scale = Scale::new(timeline);
    let mut out = begin(WIDTH, HEIGHT, &format!("{STYLE}{COLOURS}"), timeline.title);
    text(&mut out, "title", LEFT, 22.0, "start", timeline.title);
    axes(&mut out, &scale);
    faults(&mut out, timeline, &scale);
    for (name, times) in series(timeline) {
        line(&mut out, name, times, &scale);
    }
    legend(&mut out, timeline);
    out.push_str("</svg>\n");
    out
}

fn series<'a>(timeline: &Timeline<'a>) -> [(&'static str, &'a [Micros]); 3] {
    [("errors", timeline.errors), ("submitted", timeline.submitted), ("ended", timeline.ended)]
}

/// Maps times and rates to coordinates.
struct Scale {
    began: Micros,
    span: Micros,
    bucket: Micros,
    highest: f64,
}

impl Scale {
    fn new(timeline: &Timeline<'_>) -> Self {
        let span = (timeline.load.end - timeline.load.start).max(SECOND);
        let bucket = SECOND.max(span / MAX_BUCKETS);
        let mut scale = Self { began: timeline.load.start, span, bucket, highest: 1.0 };
        let rates = series(timeline).into_iter().flat_map(|(_, times)| scale.rates(times));
        scale.highest = rates.fold(1.0, f64::max);
        scale
    }

    /// Rates per second, by bucket.
    fn rates(&self, times: &[Micros]) -> Vec<f64> {
        let count = usize::try_from(self.span.div_euclid(self.bucket)).unwrap_or_default().max(1);
        let mut rates = vec![0.0; count];
        for time in times {
            let bucket = usize::try_from((time - self.began).div_euclid(self.bucket)).ok();
            if let Some(rate) = bucket.and_then(|bucket| rates.get_mut(bucket)) {
                *rate += SECOND as f64 / self.bucket as f64;
            }
        }
        rates
    }

    fn x(&self, time: Micros) -> f64 {
        let share = (time - self.began) as f64 / self.span as f64;
        LEFT + share.clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, rate: f64) -> f64 {
        HEIGHT - BOTTOM - rate / self.highest * (HEIGHT - BOTTOM - TOP)
    }
}

fn axes(out: &mut String, scale: &Scale) {
    for part in 0..=4 {
        let rate = scale.highest * f64::from(part) / 4.0;
        let y = scale.y(rate);
        push_line(
            out,
            &format!(
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>",
                WIDTH - RIGHT
            ),
        );
        push_line(
            out,
            &format!(
                "<text class=\"axis\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{rate:.0}/s</text>",
                LEFT - 6.0,
                y + 4.0
            ),
        );
    }
    for part in 0..=10 {
        let time = scale.began + scale.span * part / 10;
        let (x, seconds) = (scale.x(time), (time - scale.began) as f64 / SECOND as f64);
        push_line(
            out,
            &format!(
                "<text class=\"axis\" x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{seconds:.0} s</text>",
                HEIGHT - BOTTOM + 18.0
            ),
        );
    }
}

fn faults(out: &mut String, timeline: &Timeline<'_>, scale: &Scale) {
    for (index, fault) in timeline.faults.iter().enumerate() {
        let (x, end) = (scale.x(fault.began), scale.x(fault.ended));
        let (width, height) = ((end - x).max(1.5), HEIGHT - BOTTOM - TOP);
        let kind = escape(&fault.kind);
        let what = escape(&format!("{} {}", fault.kind, fault.target));
        push_line(
            out,
            &format!(
                "<rect class=\"fault\" x=\"{x:.1}\" y=\"{TOP}\" width=\"{width:.1}\" height=\"{height}\"><title>{what}</title></rect>"
            ),
        );
        let y = TOP - 5.0;
        push_line(
            out,
            &format!(
                "<text class=\"label\" x=\"{x:.1}\" y=\"{y}\" transform=\"rotate(-55 {x:.1} {y})\">{kind}</text>"
            ),
        );
        let recovered = timeline.recoveries.get(index).and_then(|recovery| recovery.recovered);
        if let Some(recovered) = recovered.filter(|recovered| *recovered > fault.ended) {
            let x = scale.x(recovered);
            let bottom = HEIGHT - BOTTOM;
            push_line(
                out,
                &format!(
                    "<line class=\"recovered\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"><title>recovered from {kind}</title></line>"
                ),
            );
        }
    }
}

fn line(out: &mut String, name: &str, times: &[Micros], scale: &Scale) {
    let mut points = String::new();
    for (index, rate) in (0..).zip(scale.rates(times)) {
        let middle = scale.began + scale.bucket * index + scale.bucket / 2;
        let _infallible = write!(points, "{:.1},{:.1} ", scale.x(middle), scale.y(rate));
    }
    push_line(out, &format!("<polyline class=\"line {name}\" points=\"{}\"/>", points.trim_end()));
}

fn legend(out: &mut String, timeline: &Timeline<'_>) {
    let keys =
        [("ended", "runs ended"), ("submitted", "runs submitted"), ("errors", "failed attempts of clients")];
    for (index, (name, label)) in (0..).zip(keys) {
        let x = LEFT + 210.0 * f64::from(index);
        let y = HEIGHT - 14.0;
        push_line(
            out,
            &format!("<rect class=\"key-{name}\" x=\"{x}\" y=\"{}\" width=\"14\" height=\"4\"/>", y - 6.0),
        );
        push_line(out, &format!("<text class=\"axis\" x=\"{}\" y=\"{y}\">{label}</text>", x + 20.0));
    }
    if !timeline.faults.is_empty() {
        let x = LEFT + 640.0;
        push_line(
            out,
            &format!(
                "<text class=\"label\" x=\"{x}\" y=\"{}\">band: fault; dashed: the rate is back</text>",
                HEIGHT - 14.0
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::svg_chart::tests::elements;

    #[test]
    fn timeline_is_well_formed_svg_with_every_fault() {
        let fault = |kind: &str, began: Micros| Fault {
            kind: kind.into(),
            target: "a <worker> & \"more\"".into(),
            began: began * SECOND,
            ended: (began + 2) * SECOND,
        };
        let faults = [fault("worker-kill", 5), fault("nats-wipe", 12), fault("postgres-pause", 20)];
        let recovery =
            Recovery { recovered: Some(9 * SECOND), from_end: None, from_beginning: None, first_run: None };
        let ended: Vec<Micros> = (0..300).map(|run| run * SECOND / 10).collect();
        let drawn = svg(&Timeline {
            title: "chaos <seed 1> & co",
            load: 0..30 * SECOND,
            ended: &ended,
            submitted: &ended[..200],
            errors: &[],
            faults: &faults,
            recoveries: &[recovery],
        });
        let elements = elements(&drawn);
        assert_eq!(elements.iter().filter(|name| **name == "polyline").count(), 3);
        for fault in &faults {
            assert!(drawn.contains(&format!(">{}</text>", fault.kind)), "{}", fault.kind);
        }
        assert_eq!(drawn.matches("class=\"recovered\"").count(), 1);
        assert!(drawn.contains("prefers-color-scheme:dark") && !drawn.contains("NaN"));
        assert!(drawn.contains("chaos &lt;seed 1&gt; &amp; co"));
    }

    #[test]
    fn empty_test_can_be_drawn() {
        let nothing = Timeline {
            title: "nothing",
            load: 5..5,
            ended: &[],
            submitted: &[],
            errors: &[],
            faults: &[],
            recoveries: &[],
        };
        let drawn = svg(&nothing);
        assert!(!elements(&drawn).is_empty() && !drawn.contains("NaN") && !drawn.contains("inf"));
    }
}
