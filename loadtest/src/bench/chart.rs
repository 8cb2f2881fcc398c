//! The SVG chart of a measurement: rate over time, latency percentiles, and the time spent in each stage.

use std::{fmt::Write as _, ops::Range};

use hdrhistogram::Histogram;

use crate::{
    load::Stage,
    observed_history::Micros,
    svg_chart::{COLOURS, PlotArea, STYLE, begin, grouped, millis, push_line, round_up, text},
};

const WIDTH: f64 = 1200.0;
const HEIGHT: f64 = 520.0;
const RATE: PlotArea = PlotArea { left: 70.0, top: 92.0, width: 510.0, height: 250.0 };
const PERCENTILES: PlotArea = PlotArea { left: 670.0, top: 92.0, width: 495.0, height: 250.0 };
const BAR: PlotArea = PlotArea { left: 70.0, top: 412.0, width: 1095.0, height: 34.0 };
/// The largest distance between the names of two stages.
const COLUMN: f64 = 190.0;
const SECOND: Micros = 1_000_000;
const MAX_POINTS: i64 = 120;
/// The marks of the percentile axis, on which each additional nine takes the same width.
const MARKS: [(f64, &str); 6] =
    [(0.0, "0 %"), (0.5, "50 %"), (0.9, "90 %"), (0.99, "99 %"), (0.999, "99.9 %"), (0.9999, "99.99 %")];
const NINES: f64 = 4.0;
/// The largest number of marks on the time axis.
const MAX_TIME_MARKS: u32 = 8;
const STEPS: u32 = 160;

/// The data of the chart.
#[derive(Debug)]
pub(super) struct Chart<'a> {
    pub(super) title: &'a str,
    pub(super) subtitle: &'a str,
    /// What is counted, and between which points the latency is measured.
    pub(super) unit: &'a str,
    pub(super) latency_label: &'a str,
    pub(super) ends: &'a [Micros],
    pub(super) window: Range<Micros>,
    pub(super) latencies: &'a Histogram<u64>,
    pub(super) stages: &'a [Stage],
}

pub(super) fn svg(chart: &Chart<'_>) -> String {
    let mut out = begin(WIDTH, HEIGHT, STYLE, chart.title);
    text(&mut out, "title", 20.0, 28.0, "start", chart.title);
    text(&mut out, "strong", 20.0, 50.0, "start", chart.subtitle);
    rate(&mut out, chart);
    percentiles(&mut out, chart);
    stages(&mut out, chart.stages);
    out.push_str("</svg>\n");
    out
}

fn rate(out: &mut String, chart: &Chart<'_>) {
    text(out, "head", RATE.left, RATE.top - 12.0, "start", &format!("{} per second, over time", chart.unit));
    let span = (chart.window.end - chart.window.start).max(1);
    let rates = rates(chart.ends, &chart.window);
    let highest = round_up(rates.iter().copied().fold(1.0, f64::max));
    for part in 0..=4 {
        let share = f64::from(part) / 4.0;
        RATE.grid_line(out, share, &grouped(highest * share));
    }
    let seconds = span as f64 / SECOND as f64;
    let step = step(seconds);
    for number in 0..=MAX_TIME_MARKS {
        let at = f64::from(number) * step;
        if at <= seconds {
            RATE.x_label(out, at / seconds, &format!("{at} s"));
        }
    }
    let count = rates.len().max(1) as f64;
    let place = |(index, rate): (usize, &f64)| (RATE.x((index as f64 + 0.5) / count), RATE.y(rate / highest));
    line(out, COLOURS[0], rates.iter().enumerate().map(place));
}

/// Seconds between two marks.
fn step(seconds: f64) -> f64 {
    let steps = [0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0];
    let fits = steps.into_iter().find(|step| seconds / step <= f64::from(MAX_TIME_MARKS));
    fits.unwrap_or(seconds / f64::from(MAX_TIME_MARKS))
}

/// Rates per second in equal intervals, as many as the width can show.
fn rates(ends: &[Micros], window: &Range<Micros>) -> Vec<f64> {
    let span = (window.end - window.start).max(1);
    let count = (span / (SECOND / 2)).clamp(1, MAX_POINTS);
    let mut rates = vec![0.0; usize::try_from(count).unwrap_or(1)];
    let per_end = count as f64 * SECOND as f64 / span as f64;
    for end in ends.iter().filter(|end| window.contains(end)) {
        let part = usize::try_from((end - window.start) * count / span).unwrap_or_default();
        if let Some(rate) = rates.get_mut(part) {
            *rate += per_end;
        }
    }
    rates
}

fn percentiles(out: &mut String, chart: &Chart<'_>) {
    let field = PERCENTILES;
    let head = format!("{}, by percentile", chart.latency_label);
    text(out, "head", field.left, field.top - 12.0, "start", &head);
    let at = |quantile: f64| chart.latencies.value_at_quantile(quantile).max(1) as f64 / 1000.0;
    let (lowest, highest) = (floor_of_ten(at(0.0)), ceiling_of_ten(at(0.9999)));
    let decades = (highest / lowest).log10().round().max(1.0);
    let height = |value: f64| (value / lowest).log10() / decades;
    let mut level = lowest;
    while level <= highest * 1.001 {
        field.grid_line(out, height(level), &level_label(level));
        level *= 10.0;
    }
    for (quantile, label) in MARKS {
        field.x_label(out, nines(quantile), label);
    }
    let points = (0..=STEPS).map(|step| f64::from(step) / f64::from(STEPS));
    let points = points.map(|share| (field.x(share), field.y(height(at(1.0 - 10_f64.powf(-share * NINES))))));
    line(out, COLOURS[1], points);
    for quantile in [0.5, 0.99] {
        let (x, y) = (field.x(nines(quantile)), field.y(height(at(quantile))));
        push_line(out, &format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{}\"/>", COLOURS[1]));
        // Near the top, the label goes below the curve to stay inside the plot.
        let above = if y < field.top + 24.0 { -20.0 } else { 10.0 };
        text(out, "strong", x, y - above, "middle", &millis(at(quantile)));
    }
}

fn level_label(millis: f64) -> String {
    let digits = match millis {
        millis if millis > 0.9 => return format!("{} ms", grouped(millis)),
        millis if millis > 0.09 => 1,
        millis if millis > 0.009 => 2,
        _ => 3,
    };
    format!("{millis:.digits$} ms")
}

/// The position of a percentile: 90 % at one quarter, 99 % at two.
fn nines(quantile: f64) -> f64 {
    -(1.0 - quantile).log10() / NINES
}

fn floor_of_ten(number: f64) -> f64 {
    10_f64.powf(number.log10().floor())
}

/// The next power of ten above the number, so that the axis is never empty.
fn ceiling_of_ten(number: f64) -> f64 {
    10_f64.powf(number.log10().floor() + 1.0)
}

fn stages(out: &mut String, stages: &[Stage]) {
    let whole: f64 = stages.iter().map(|stage| stage.p50_ms).sum();
    if whole <= 0.0 {
        return;
    }
    let head =
        format!("where the time goes: p50 of each stage after the one before it, together {}", millis(whole));
    text(out, "head", BAR.left, BAR.top - 12.0, "start", &head);
    let (mut begun, row) = (0.0, BAR.bottom() + 26.0);
    let column = (BAR.width / stages.len() as f64).min(COLUMN);
    for (place, (stage, colour)) in stages.iter().zip(COLOURS.iter().cycle()).enumerate() {
        let (x, width) = (BAR.x(begun / whole), stage.p50_ms / whole * BAR.width);
        begun += stage.p50_ms;
        let (p50, p99) = (millis(stage.p50_ms), millis(stage.p99_ms));
        push_line(
            out,
            &format!(
                "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{:.1}\" fill=\"{colour}\"><title>{}: p50 {p50}, p99 {p99}</title></rect>",
                BAR.top, BAR.height, stage.name
            ),
        );
        let left = BAR.left + column * place as f64;
        push_line(
            out,
            &format!(
                "<rect x=\"{left:.1}\" y=\"{:.1}\" width=\"11\" height=\"11\" fill=\"{colour}\"/>",
                row - 10.0
            ),
        );
        text(out, "strong", left + 17.0, row, "start", &stage.name.replace('_', " "));
        text(out, "axis", left + 17.0, row + 17.0, "start", &format!("{p50}, p99 {p99}"));
    }
}

fn line(out: &mut String, colour: &str, points: impl Iterator<Item = (f64, f64)>) {
    let mut places = String::new();
    for (x, y) in points {
        let _infallible = write!(places, "{x:.1},{y:.1} ");
    }
    push_line(
        out,
        &format!("<polyline class=\"line\" stroke=\"{colour}\" points=\"{}\"/>", places.trim_end()),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::svg_chart::tests::elements;

    fn histogram(values: impl Iterator<Item = u64>) -> Histogram<u64> {
        let mut histogram = Histogram::new(3).unwrap();
        values.for_each(|value| histogram.record(value).unwrap());
        histogram
    }

    fn chart<'a>(latencies: &'a Histogram<u64>, ends: &'a [Micros], stages: &'a [Stage]) -> Chart<'a> {
        Chart {
            title: "noop <split> & co",
            subtitle: "1,000 runs/s",
            unit: "runs",
            latency_label: "submit to end",
            ends,
            window: 0..10 * SECOND,
            latencies,
            stages,
        }
    }

    #[test]
    fn chart_is_well_formed_svg_with_every_part() {
        let ends: Vec<Micros> = (0..1000).map(|run| run * SECOND / 100).collect();
        let latencies = histogram((1..=1000).map(|value| value * 100));
        let stages = ["committed", "at_client"].map(|name| Stage::of_all_runs(name, 3.0, 9.0));
        let drawn = svg(&chart(&latencies, &ends, &stages));
        let elements = elements(&drawn);
        assert_eq!(elements.iter().filter(|name| **name == "polyline").count(), 2);
        assert_eq!(elements.iter().filter(|name| **name == "rect").count(), 4);
        assert!(drawn.contains("at client") && drawn.contains("99.99 %") && drawn.contains("&lt;split&gt;"));
        assert!(!drawn.contains("NaN") && !drawn.contains("inf"));
    }

    #[test]
    fn empty_measurement_can_be_drawn() {
        let drawn = svg(&chart(&histogram(std::iter::empty()), &[], &[]));
        assert!(!elements(&drawn).is_empty() && !drawn.contains("NaN") && !drawn.contains("inf"));
    }

    #[test]
    fn rates_are_per_second() {
        let ends: Vec<Micros> = (0..500).map(|run| run * SECOND / 50).collect();
        let rates = rates(&ends, &(0..10 * SECOND));
        assert_eq!(rates.len(), 20);
        assert!(rates.iter().all(|rate| (rate - 50.0).abs() < 1e-6), "{rates:?}");
    }

    #[test]
    fn time_marks_and_level_labels_are_round() {
        assert_eq!([3.3, 5.1, 10.0, 170.0].map(step), [0.5, 1.0, 2.0, 30.0]);
        assert_eq!([0.01, 0.1, 1.0, 1000.0].map(level_label), ["0.01 ms", "0.1 ms", "1 ms", "1,000 ms"]);
    }

    #[test]
    fn each_nine_takes_the_same_width() {
        let places = [0.0, 0.9, 0.99, 0.9999].map(nines);
        for (place, wanted) in places.into_iter().zip([0.0, 0.25, 0.5, 1.0]) {
            assert!((place - wanted).abs() < 1e-9, "{place}");
        }
    }
}
