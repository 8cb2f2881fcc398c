//! Builds the tables of the panels.

use std::time::Duration;

use ratatui::{
    layout::Constraint,
    text::Line,
    widgets::{Cell, Row},
};
use remuda_domain::money::dollars;
use remuda_proto::v1;

use super::{Frame, Tone, age, right};
use crate::{
    output::count,
    top::data::{Panel, session_label, short},
};

/// Width of a bar.
const BAR_CELLS: usize = 8;

/// The table of a panel.
pub(super) struct PanelTable {
    pub(super) panel: Panel,
    pub(super) header: Vec<Cell<'static>>,
    pub(super) widths: Vec<Constraint>,
    pub(super) rows: Vec<Row<'static>>,
    /// A caveat about the numbers.
    pub(super) note: Option<&'static str>,
}

/// The columns of a panel: names, with `>` for right-aligned ones, and widths; width 0 fills the remaining space.
const fn columns(panel: Panel) -> &'static [(&'static str, u16)] {
    match panel {
        Panel::Pools => &[
            ("POOL", 0),
            (">RUNNABLE", 8),
            (">RUNNING", 7),
            (">QUEUED", 7),
            (">PARKED", 6),
            (">OLDEST", 8),
            (">WORKERS", 7),
            ("SLOTS", 16),
        ],
        Panel::Workers => &[
            ("WORKER", 8),
            ("HOST", 0),
            ("POOL", 10),
            ("STATE", 8),
            ("SLOTS", 16),
            (">LEASE", 7),
            ("VERSION", 9),
        ],
        Panel::Running => &[
            ("SESSION", 0),
            ("RUN", 7),
            ("WHAT", 10),
            ("STEP", 0),
            ("WORKER", 10),
            (">ELAPSED", 8),
            (">COST", 8),
        ],
        Panel::Waiting => {
            &[("SESSION", 0), ("RUN", 7), ("WHAT", 10), ("WHY", 0), (">AHEAD", 5), (">WAITED", 8)]
        }
    }
}

pub(super) fn table(frame: &Frame<'_>, panel: Panel) -> PanelTable {
    let name = |(name, _): &(&'static str, u16)| match name.strip_prefix('>') {
        Some(name) => Cell::from(right(name.into())),
        None => Cell::from(*name),
    };
    let width = |(_, width): &(&'static str, u16)| match width {
        0 => Constraint::Fill(1),
        width => Constraint::Length(*width),
    };
    let (order, filter, overview) = (frame.state.order(panel), &frame.state.filter, frame.overview);
    let rows = match panel {
        Panel::Pools => overview.pools(order, filter).into_iter().map(|pool| pool_row(frame, pool)).collect(),
        Panel::Workers => {
            overview.workers(order, filter).into_iter().map(|it| worker_row(frame, it)).collect()
        }
        Panel::Running => {
            overview.runs(panel, order, filter).into_iter().map(|run| running_row(frame, run)).collect()
        }
        Panel::Waiting => {
            overview.runs(panel, order, filter).into_iter().map(|run| waiting_row(frame, run)).collect()
        }
    };
    let at_least = panel == Panel::Pools && overview.0.at_least;
    PanelTable {
        panel,
        header: columns(panel).iter().map(name).collect(),
        widths: columns(panel).iter().map(width).collect(),
        rows,
        note: at_least.then_some("at least: not all runnable sessions were counted"),
    }
}

/// A usage bar, such as `███░░░░░ 3/8`.
fn bar(used: u32, of: u32) -> String {
    let (used_cells, all) = (used.min(of) as usize * BAR_CELLS, of.max(1) as usize);
    // Show at least one cell for any used and any free slot.
    let full = used_cells.div_ceil(all).min(if used < of { BAR_CELLS - 1 } else { BAR_CELLS });
    let full = if of == 0 { 0 } else { full };
    format!("{}{} {used}/{of}", "█".repeat(full), "░".repeat(BAR_CELLS - full))
}

fn number(frame: &Frame<'_>, tone: Tone, number: i64) -> Line<'static> {
    let tone = if number == 0 { Tone::Dim } else { tone };
    right(frame.span(tone, count(u64::try_from(number).unwrap_or(0))))
}

fn time(frame: &Frame<'_>, tone: Tone, time: Duration) -> Line<'static> {
    right(frame.span(tone, age(time)))
}

fn pool_row(frame: &Frame<'_>, pool: &v1::PoolOverview) -> Row<'static> {
    let stats = pool.stats.clone().unwrap_or_default();
    let starved = stats.runnable_sessions > 0 && stats.workers == 0;
    let full = pool.busy >= stats.slots && stats.runnable_sessions > 0;
    let oldest = frame.overview.oldest(&stats).map(|age| time(frame, Tone::Plain, age));
    let workers = match pool.draining {
        0 => stats.workers.to_string(),
        draining => format!("{}+{draining}", stats.workers),
    };
    Row::new(vec![
        Line::from(frame.span(Tone::Bold, &stats.pool)),
        number(frame, if starved { Tone::Bad } else { Tone::Plain }, stats.runnable_sessions),
        number(frame, Tone::Accent, stats.running_sessions),
        number(frame, Tone::Plain, stats.queued_runs),
        number(frame, Tone::Warn, pool.parked_sessions),
        oldest.unwrap_or_default(),
        right(frame.span(if starved { Tone::Bad } else { Tone::Plain }, workers)),
        Line::from(frame.span(if full { Tone::Warn } else { Tone::Good }, bar(pool.busy, stats.slots))),
    ])
}

fn worker_row(frame: &Frame<'_>, worker: &v1::Worker) -> Row<'static> {
    let lease = frame.overview.lease(worker);
    let state = if worker.state == "active" { Tone::Good } else { Tone::Warn };
    Row::new(vec![
        Line::from(frame.span(Tone::Dim, short(&worker.id))),
        Line::from(frame.span(Tone::Bold, &worker.host)),
        Line::from(frame.span(Tone::Plain, &worker.pool)),
        Line::from(frame.span(state, &worker.state)),
        Line::from(frame.span(Tone::Plain, bar(worker.busy, worker.slots))),
        time(frame, if lease < Duration::from_secs(5) { Tone::Warn } else { Tone::Plain }, lease),
        Line::from(frame.span(Tone::Dim, &worker.version)),
    ])
}

/// The agent of a run, or else its kind.
fn executor(run: &v1::RunGlance) -> &str {
    if run.kind == "message" && !run.agent.is_empty() { &run.agent } else { &run.kind }
}

fn running_row(frame: &Frame<'_>, run: &v1::RunGlance) -> Row<'static> {
    let overview = frame.overview;
    let step = run.step.as_ref().map(|step| match overview.step_age(step) {
        Some(since) => format!("{} {} {}", step.index + 1, step.name, age(since)),
        None => format!("{} {} ended", step.index + 1, step.name),
    });
    let (tone, step) = match run.reason.as_str() {
        "executing" => (Tone::Plain, step.unwrap_or_default()),
        _ => (Tone::Warn, run.why.clone()),
    };
    let cost = match (run.cost_micros, run.tokens) {
        (0, 0) => String::new(),
        (0, tokens) => format!("{} tok", count(tokens)),
        (micros, _) => dollars(micros),
    };
    Row::new(vec![
        Line::from(frame.span(Tone::Bold, session_label(run))),
        Line::from(frame.span(Tone::Dim, short(&run.run_id))),
        Line::from(frame.span(Tone::Plain, executor(run))),
        Line::from(frame.span(tone, step)),
        Line::from(frame.span(Tone::Plain, overview.worker_host(&run.worker_id))),
        time(frame, Tone::Accent, overview.age(run)),
        right(frame.span(Tone::Plain, cost)),
    ])
}

fn waiting_row(frame: &Frame<'_>, run: &v1::RunGlance) -> Row<'static> {
    let tone = match run.reason.as_str() {
        "no_worker" | "workers_draining" | "owner_lost" | "attempt_lost" => Tone::Bad,
        "parked" => Tone::Warn,
        _ => Tone::Plain,
    };
    let overview = frame.overview;
    Row::new(vec![
        Line::from(frame.span(Tone::Bold, session_label(run))),
        Line::from(frame.span(Tone::Dim, short(&run.run_id))),
        Line::from(frame.span(Tone::Plain, executor(run))),
        Line::from(frame.span(tone, &run.why)),
        number(frame, Tone::Plain, run.position),
        time(frame, Tone::Accent, overview.age(run)),
    ])
}

#[cfg(test)]
mod tests {
    use super::bar;

    #[test]
    fn bar_is_full_only_if_all_slots_are_used() {
        assert_eq!(bar(0, 4), "░░░░░░░░ 0/4");
        assert_eq!(bar(1, 100), "█░░░░░░░ 1/100");
        assert_eq!(bar(99, 100), "███████░ 99/100");
        assert_eq!(bar(4, 4), "████████ 4/4");
        assert_eq!(bar(5, 4), "████████ 5/4");
        assert_eq!(bar(2, 0), "░░░░░░░░ 2/0");
    }
}
