//! The SVG chart of `loadtest growth`: rates above memory, one column per growing quantity.

use std::fmt::Write as _;

use super::table::{GOAL, Point, Series};
use crate::svg_chart::{COLOURS, PlotArea, STYLE, begin, grouped, push_line, round_up, text};

const WIDTH: f64 = 1200.0;
const HEIGHT: f64 = 640.0;
const FIELD_WIDTH: f64 = 490.0;
const LEFTS: [f64; 2] = [80.0, 680.0];
const GOAL_STYLE: &str = ".goal{stroke:#d9534f;stroke-dasharray:5 4;opacity:.8}";

pub(super) fn svg(title: &str, series: &[Series]) -> String {
    let mut out = begin(WIDTH, HEIGHT, &format!("{STYLE}\n{GOAL_STYLE}"), title);
    text(&mut out, "title", 20.0, 28.0, "start", title);
    for (it, left) in series.iter().zip(LEFTS) {
        rates(&mut out, it, PlotArea { left, top: 80.0, width: FIELD_WIDTH, height: 200.0 });
        memory(&mut out, it, PlotArea { left, top: 370.0, width: FIELD_WIDTH, height: 200.0 });
    }
    out.push_str("</svg>\n");
    out
}

/// The x coordinate of a size: sizes grow by factors, so they are evenly spaced.
fn x_of(area: &PlotArea, index: usize, series: &Series) -> f64 {
    area.x((index as f64 + 0.5) / series.points.len().max(1) as f64)
}

fn sizes(out: &mut String, area: &PlotArea, series: &Series) {
    for (index, point) in series.points.iter().enumerate() {
        let label = format!("{} {}", grouped(point.size as f64), series.name);
        text(out, "axis", x_of(area, index, series), area.bottom() + 18.0, "middle", &label);
    }
}

fn rates(out: &mut String, series: &Series, area: PlotArea) {
    let head = format!("runs per second by {}, as a part of those at the smallest", series.name);
    text(out, "head", area.left, area.top - 14.0, "start", &head);
    let highest = series.points.iter().map(|point| series.share(point)).fold(1.2, f64::max);
    let highest = (highest * 5.0).ceil() / 5.0;
    for part in 0..=4 {
        let share = f64::from(part) / 4.0;
        area.grid_line(out, share, &format!("{:.0} %", highest * share * 100.0));
    }
    let width = (area.width / series.points.len().max(1) as f64 * 0.5).min(70.0);
    for (index, point) in series.points.iter().enumerate() {
        let share = series.share(point);
        let (x, y) = (x_of(&area, index, series), area.y(share / highest));
        push_line(
            out,
            &format!(
                "<rect x=\"{:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{:.1}\" fill=\"{}\"/>",
                x - width / 2.0,
                area.bottom() - y,
                COLOURS[0]
            ),
        );
        let label = format!("{:.0} % ({}/s)", share * 100.0, grouped(point.per_second()));
        text(out, "strong", x, y - 6.0, "middle", &label);
    }
    let y = area.y(GOAL / highest);
    push_line(
        out,
        &format!(
            "<line class=\"goal\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"><title>the goal: {:.0} %</title></line>",
            area.left,
            area.right(),
            GOAL * 100.0
        ),
    );
    sizes(out, &area, series);
}

fn memory(out: &mut String, series: &Series, area: PlotArea) {
    text(
        out,
        "head",
        area.left,
        area.top - 14.0,
        "start",
        "resident memory after the load, MiB (dots: before it)",
    );
    let processes = series.points.first().map(Point::processes).unwrap_or_default();
    let all = series.points.iter().flat_map(|point| processes.iter().map(|process| point.memory(process)));
    let highest = round_up(all.fold(1.0, f64::max));
    for part in 0..=4 {
        let share = f64::from(part) / 4.0;
        area.grid_line(out, share, &grouped(highest * share));
    }
    for (number, (process, colour)) in processes.iter().zip(COLOURS.iter().cycle()).enumerate() {
        let mut points = String::new();
        for (index, point) in series.points.iter().enumerate() {
            let x = x_of(&area, index, series);
            let _infallible = write!(points, "{x:.1},{:.1} ", area.y(point.memory(process) / highest));
            let y = area.y(point.idle_memory(process) / highest);
            push_line(out, &format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"));
        }
        push_line(
            out,
            &format!("<polyline class=\"line\" stroke=\"{colour}\" points=\"{}\"/>", points.trim_end()),
        );
        let (x, y) = (area.left + number as f64 * area.width / processes.len() as f64, area.bottom() + 44.0);
        push_line(
            out,
            &format!(
                "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"11\" height=\"11\" fill=\"{colour}\"/>",
                y - 10.0
            ),
        );
        text(out, "strong", x + 16.0, y, "start", process);
    }
    sizes(out, &area, series);
}

#[cfg(test)]
mod tests {
    use super::{super::table::tests::series, *};
    use crate::svg_chart::tests::elements;

    #[test]
    fn every_size_and_process_is_drawn() {
        let drawn = svg("growth <split>", &[series(), series()]);
        let elements = elements(&drawn);
        assert_eq!(elements.iter().filter(|name| **name == "polyline").count(), 4);
        assert!(drawn.contains("75 % (3,000/s)") && drawn.contains("control-plane-0"));
        assert!(!drawn.contains("NaN") && !drawn.contains("inf"));
    }

    #[test]
    fn empty_series_can_be_drawn() {
        let drawn = svg("nothing", &[Series::new("sessions", &[]), Series::new("queued runs", &[0])]);
        assert!(!elements(&drawn).is_empty() && !drawn.contains("NaN") && !drawn.contains("inf"));
    }
}
