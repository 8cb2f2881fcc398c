//! The lists as tables.

use std::time::Duration;

use ratatui::{
    layout::Constraint,
    text::Line,
    widgets::{Cell, Row},
};
use remuda_domain::money::dollars;
use remuda_proto::v1;

use super::{Screen, Tone, age, right};
use crate::{
    output::count,
    top::data::{Panel, session_of, short},
};

/// Cells of a bar.
const BAR: usize = 8;

/// A list, ready to be drawn.
pub(super) struct Sheet {
    pub(super) panel: Panel,
    pub(super) header: Vec<Cell<'static>>,
    pub(super) widths: Vec<Constraint>,
    pub(super) rows: Vec<Row<'static>>,
    /// What has to be known of the numbers.
    pub(super) note: Option<&'static str>,
}

/// The columns of a panel: their names, with `>` before those whose values are numbers, and their widths; 0 takes what is left.
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

pub(super) fn sheet(screen: &Screen<'_>, panel: Panel) -> Sheet {
    let name = |(name, _): &(&'static str, u16)| match name.strip_prefix('>') {
        Some(name) => Cell::from(right(name.into())),
        None => Cell::from(*name),
    };
    let width = |(_, width): &(&'static str, u16)| match width {
        0 => Constraint::Fill(1),
        width => Constraint::Length(*width),
    };
    let (order, filter, look) = (screen.state.order(panel), &screen.state.filter, screen.look);
    let rows = match panel {
        Panel::Pools => look.pools(order, filter).into_iter().map(|pool| pool_row(screen, pool)).collect(),
        Panel::Workers => look.workers(order, filter).into_iter().map(|it| worker_row(screen, it)).collect(),
        Panel::Running => {
            look.runs(panel, order, filter).into_iter().map(|run| running_row(screen, run)).collect()
        }
        Panel::Waiting => {
            look.runs(panel, order, filter).into_iter().map(|run| waiting_row(screen, run)).collect()
        }
    };
    let at_least = panel == Panel::Pools && look.0.at_least;
    Sheet {
        panel,
        header: columns(panel).iter().map(name).collect(),
        widths: columns(panel).iter().map(width).collect(),
        rows,
        note: at_least.then_some("at least: more sessions have work than were counted"),
    }
}

/// `███░░░░░ 3/8`.
fn bar(used: u32, of: u32) -> String {
    let (used_cells, all) = (used.min(of) as usize * BAR, of.max(1) as usize);
    // Whatever is used is seen, and what is free too.
    let full = used_cells.div_ceil(all).min(if used < of { BAR - 1 } else { BAR });
    let full = if of == 0 { 0 } else { full };
    format!("{}{} {used}/{of}", "█".repeat(full), "░".repeat(BAR - full))
}

fn number(screen: &Screen<'_>, tone: Tone, number: i64) -> Line<'static> {
    let tone = if number == 0 { Tone::Dim } else { tone };
    right(screen.span(tone, count(u64::try_from(number).unwrap_or(0))))
}

fn time(screen: &Screen<'_>, tone: Tone, time: Duration) -> Line<'static> {
    right(screen.span(tone, age(time)))
}

fn pool_row(screen: &Screen<'_>, pool: &v1::PoolOverview) -> Row<'static> {
    let stats = pool.stats.clone().unwrap_or_default();
    let starved = stats.runnable_sessions > 0 && stats.workers == 0;
    let full = pool.busy >= stats.slots && stats.runnable_sessions > 0;
    let oldest = screen.look.oldest(&stats).map(|age| time(screen, Tone::Plain, age));
    let workers = match pool.draining {
        0 => stats.workers.to_string(),
        draining => format!("{}+{draining}", stats.workers),
    };
    Row::new(vec![
        Line::from(screen.span(Tone::Bold, &stats.pool)),
        number(screen, if starved { Tone::Bad } else { Tone::Plain }, stats.runnable_sessions),
        number(screen, Tone::Accent, stats.running_sessions),
        number(screen, Tone::Plain, stats.queued_runs),
        number(screen, Tone::Warn, pool.parked_sessions),
        oldest.unwrap_or_default(),
        right(screen.span(if starved { Tone::Bad } else { Tone::Plain }, workers)),
        Line::from(screen.span(if full { Tone::Warn } else { Tone::Good }, bar(pool.busy, stats.slots))),
    ])
}

fn worker_row(screen: &Screen<'_>, worker: &v1::Worker) -> Row<'static> {
    let lease = screen.look.lease(worker);
    let state = if worker.state == "active" { Tone::Good } else { Tone::Warn };
    Row::new(vec![
        Line::from(screen.span(Tone::Dim, short(&worker.id))),
        Line::from(screen.span(Tone::Bold, &worker.host)),
        Line::from(screen.span(Tone::Plain, &worker.pool)),
        Line::from(screen.span(state, &worker.state)),
        Line::from(screen.span(Tone::Plain, bar(worker.busy, worker.slots))),
        time(screen, if lease < Duration::from_secs(5) { Tone::Warn } else { Tone::Plain }, lease),
        Line::from(screen.span(Tone::Dim, &worker.version)),
    ])
}

/// Who works on a run, or how.
fn what(run: &v1::RunGlance) -> &str {
    if run.kind == "message" && !run.agent.is_empty() { &run.agent } else { &run.kind }
}

fn running_row(screen: &Screen<'_>, run: &v1::RunGlance) -> Row<'static> {
    let look = screen.look;
    let step = run.step.as_ref().map(|step| match look.step_age(step) {
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
        Line::from(screen.span(Tone::Bold, session_of(run))),
        Line::from(screen.span(Tone::Dim, short(&run.run_id))),
        Line::from(screen.span(Tone::Plain, what(run))),
        Line::from(screen.span(tone, step)),
        Line::from(screen.span(Tone::Plain, look.host_of(&run.worker_id))),
        time(screen, Tone::Accent, look.age(run)),
        right(screen.span(Tone::Plain, cost)),
    ])
}

fn waiting_row(screen: &Screen<'_>, run: &v1::RunGlance) -> Row<'static> {
    let tone = match run.reason.as_str() {
        "no_worker" | "workers_draining" | "owner_lost" | "attempt_lost" => Tone::Bad,
        "parked" => Tone::Warn,
        _ => Tone::Plain,
    };
    let look = screen.look;
    Row::new(vec![
        Line::from(screen.span(Tone::Bold, session_of(run))),
        Line::from(screen.span(Tone::Dim, short(&run.run_id))),
        Line::from(screen.span(Tone::Plain, what(run))),
        Line::from(screen.span(tone, &run.why)),
        number(screen, Tone::Plain, run.position),
        time(screen, Tone::Accent, look.age(run)),
    ])
}

#[cfg(test)]
mod tests {
    use super::bar;

    #[test]
    fn a_bar_is_full_only_when_everything_is_used() {
        assert_eq!(bar(0, 4), "░░░░░░░░ 0/4");
        assert_eq!(bar(1, 100), "█░░░░░░░ 1/100");
        assert_eq!(bar(99, 100), "███████░ 99/100");
        assert_eq!(bar(4, 4), "████████ 4/4");
        assert_eq!(bar(5, 4), "████████ 5/4");
        assert_eq!(bar(2, 0), "░░░░░░░░ 2/0");
    }
}
