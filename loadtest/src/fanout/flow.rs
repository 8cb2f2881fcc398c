//! From the commit of an event to its readers, and whether one who stops reading is noticed by the others.
//!
//! A busy moment of the machine must not decide between "with" and "without" a stalled reader: both take turns, under one
//! load, and what is compared are medians of turns.

use std::{ops::Range, sync::Arc, time::Duration};

use hdrhistogram::Histogram;
use serde_json::json;
use tokio::{sync::watch, time::sleep};

use super::{
    FanoutArgs,
    audience::{Audience, Findings},
    connection::Buffers,
    follower::Pace,
    load::{Counts, Load, Plan},
    report::{Goal, Part, rounded},
};
use crate::{
    history::{EventKind, Micros, Seen, now},
    kernel::most_unsent_bytes,
    stage::Stage,
};

const P99_GOAL_MS: f64 = 25.0;
const RATIO_GOAL: f64 = 1.10;
/// Turns of "without" and "with" a stalled reader, if each can be as long as [`SHORTEST_TURN`].
const MAX_TURNS: u64 = 8;
const SHORTEST_TURN: u64 = 2;
/// Before the first look: caches, connection pools and clocks of both sides get going.
const WARM_UP: Duration = Duration::from_secs(3);
/// After the reader stopped, until nothing more fits into the buffers on its way; and until it has caught up again.
const TURN_PAUSE: Duration = Duration::from_secs(2);
/// The session of the stalled reader gets this share of all events, so that much is held back.
const FIRST_SHARE: f64 = 0.1;
const STALLED: &str = "the stalled reader";
/// The stalled reader got an event late if it took longer than this.
const LATE: Micros = 1_000_000;

/// The times in which events count.
pub(crate) type Window = Range<Micros>;

/// Everything that happened.
struct Watched {
    quiet: Vec<Window>,
    counts: Arc<Counts>,
    findings: Findings,
    stall: Option<Stall>,
}

/// The turns in which one did not read.
struct Stall {
    windows: Vec<Window>,
    /// What that one got.
    findings: Findings,
    /// The most that the kernel held back for it.
    kernel_bytes: u64,
}

/// The part `latency`, and `stall` if it is wanted.
pub(super) async fn run(args: &FanoutArgs, stage: &mut Stage, stall: bool) -> anyhow::Result<Vec<Part>> {
    let watched = watch(args, stage, stall).await?;
    let mut parts = vec![judge_latency(args, &watched, stage.troubles())?];
    if let Some(stall) = &watched.stall {
        parts.push(judge_stall(&watched, stall)?);
    }
    Ok(parts)
}

/// What `bench` shows of a flow to readers who all read.
pub(crate) struct Flow {
    /// From the commit of an event to each of its readers, in microseconds.
    pub(crate) latencies: Histogram<u64>,
    /// When readers got events.
    pub(crate) received: Vec<Micros>,
    pub(crate) window: Window,
    /// Of the whole load, and per second of the time that was measured.
    pub(crate) runs: u64,
    pub(crate) runs_per_second: f64,
    /// Resident memory of the servers by name, in MiB.
    pub(crate) memory: Vec<(String, f64)>,
    pub(crate) violations: u64,
    pub(crate) failures: Vec<String>,
}

pub(super) async fn flow(args: &FanoutArgs, stage: &mut Stage) -> anyhow::Result<Flow> {
    let watched = watch(args, stage, false).await?;
    let Watched { quiet, counts, findings, .. } = &watched;
    let window = quiet.first().map_or(0, |first| first.start)..quiet.last().map_or(0, |last| last.end);
    let ended = findings.history.streams.values().flatten().filter(|seen| within(quiet, seen));
    let ended = ended.filter(|seen| matches!(seen.kind, EventKind::Ended(_))).count() as f64;
    let seen = findings.history.readings.iter().flat_map(|reading| &reading.seen);
    let part = Part::new("fanout", findings, stage.troubles());
    Ok(Flow {
        latencies: times(findings, quiet)?,
        received: seen.map(|seen| seen.received).filter(|at| window.contains(at)).collect(),
        runs: counts.accepted(),
        runs_per_second: ended / ((window.end - window.start).max(1) as f64 / 1e6),
        window,
        memory: stage.memory(),
        violations: part.violations(),
        failures: part.failures(),
    })
}

async fn watch(args: &FanoutArgs, stage: &Stage, stall: bool) -> anyhow::Result<Watched> {
    let mut audience = Audience::new(stage, "flow", args.sessions).await?;
    let pace = watch::channel(Pace::Reading).0;
    if stall {
        let mut reader = audience.follower(0).named(STALLED);
        reader.buffers = Buffers::Little;
        reader.pace = Some(pace.subscribe());
        audience.seat(reader);
    }
    audience.seat_many(args.readers);
    audience.all_in().await?;
    let plan = Plan {
        fleet: audience.fleet.clone(),
        sessions: audience.sessions.clone(),
        events: args.rate,
        first_share: FIRST_SHARE,
        seed: args.seed,
    };
    let load = Load::start(plan).await?;
    sleep(WARM_UP).await;
    let (mut quiet, mut stalled, mut kernel_bytes) = (Vec::new(), Vec::new(), 0);
    let turns = (args.seconds / SHORTEST_TURN).clamp(1, MAX_TURNS);
    let turn = Duration::from_secs_f64(args.seconds as f64 / turns as f64);
    for _ in 0..turns {
        quiet.push(window(turn).await);
        if stall {
            pace.send_replace(Pace::Stopped);
            sleep(TURN_PAUSE).await;
            stalled.push(window(turn).await);
            kernel_bytes = kernel_bytes.max(most_unsent_bytes(&stage.servers())?);
            pace.send_replace(Pace::Reading);
            sleep(TURN_PAUSE).await;
        }
    }
    let counts = load.stop().await?;
    let mut findings = audience.finish().await?;
    let stall =
        stall.then(|| Stall { windows: stalled, findings: findings.split_off(STALLED), kernel_bytes });
    Ok(Watched { quiet, counts, findings, stall })
}

async fn window(length: Duration) -> Window {
    let begin = now();
    sleep(length).await;
    begin..now()
}

fn judge_latency(args: &FanoutArgs, watched: &Watched, troubles: Vec<String>) -> anyhow::Result<Part> {
    let Watched { quiet, counts, findings, .. } = watched;
    let mut part = Part::new("latency", findings, troubles);
    let seconds = quiet.iter().map(|window| window.end - window.start).sum::<Micros>() as f64 / 1e6;
    let events = findings.history.streams.values().flatten().filter(|seen| within(quiet, seen));
    let events = rounded(events.count() as f64 / seconds);
    let times = times(findings, quiet)?;
    let deliveries = rounded(times.len() as f64 / seconds);
    let (readers, sessions) = (args.readers, args.sessions);
    part.tell("readers", json!(readers), "readers", format!("{readers} of {sessions} sessions"));
    part.tell("events_per_s", json!(events), "events", format!("{events:.0}/s of {:.0}/s wanted", args.rate));
    part.tell("deliveries_per_s", json!(deliveries), "deliveries", format!("{deliveries:.0}/s"));
    let (accepted, failed) = (counts.accepted(), counts.failed());
    part.tell("runs", json!(accepted), "runs", format!("{accepted}, and {failed} submits that failed"));
    part.figure("failed_submits", json!(failed));
    part.tell_times("latency_ms", &times, "commit to reader");
    part.aim(p99_goal(&times));
    Ok(part)
}

fn judge_stall(watched: &Watched, stall: &Stall) -> anyhow::Result<Part> {
    let Watched { quiet, findings, .. } = watched;
    let late = late_events(&stall.findings);
    let mut troubles = Vec::new();
    if late == 0 {
        troubles.push(format!("{STALLED} got every event in time: nothing was tested"));
    }
    let mut part = Part::new("stall", &stall.findings, troubles);
    let stalled = times(findings, &stall.windows)?;
    part.tell_times("quiet_ms", &times(findings, quiet)?, "everybody reads");
    part.tell_times("stalled_ms", &stalled, "one does not");
    // Where the kernel holds less than came late, it is the server that had to hold back or to read again.
    let bytes = stall.findings.bytes.iter().sum::<u64>() * late / stall.findings.deliveries().max(1) as u64;
    let (bytes, kernel) = (bytes / stall.windows.len().max(1) as u64, stall.kernel_bytes);
    let text = format!("{late} events; {bytes} bytes each time, at most {kernel} of them in the kernel");
    part.tell("late_events", json!(late), "this one got late", text);
    part.figure("late_bytes", json!(bytes));
    part.figure("kernel_bytes", json!(kernel));
    let ratio = typical_p99(findings, &stall.windows)? / typical_p99(findings, quiet)?;
    part.aim(Goal { name: "p99_ratio", measured: ratio, below: RATIO_GOAL, unit: "" });
    part.aim(p99_goal(&stalled));
    Ok(part)
}

/// Events that came to a reader long after they were there.
fn late_events(findings: &Findings) -> u64 {
    let seen = findings.history.readings.iter().flat_map(|reading| &reading.seen);
    seen.filter(|seen| seen.received - seen.at > LATE).count() as u64
}

fn p99_goal(times: &Histogram<u64>) -> Goal {
    Goal { name: "p99_ms", measured: p99(times), below: P99_GOAL_MS, unit: " ms" }
}

/// In milliseconds.
fn p99(times: &Histogram<u64>) -> f64 {
    times.value_at_quantile(0.99) as f64 / 1000.0
}

/// The median of the turns.
fn typical_p99(findings: &Findings, windows: &[Window]) -> anyhow::Result<f64> {
    let of = |window: &Window| anyhow::Ok(p99(&times(findings, std::slice::from_ref(window))?));
    Ok(median(windows.iter().map(of).collect::<Result<_, _>>()?))
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_unstable_by(f64::total_cmp);
    let at = |index: usize| numbers.get(index).copied().unwrap_or_default();
    let middle = numbers.len() / 2;
    if numbers.len().is_multiple_of(2) {
        f64::midpoint(at(middle.saturating_sub(1)), at(middle))
    } else {
        at(middle)
    }
}

fn within(windows: &[Window], seen: &Seen) -> bool {
    windows.iter().any(|window| window.contains(&seen.at))
}

/// How long events took to readers, in microseconds. Events are dated under the lock of their session, before the
/// commit: the commit itself is part of the time.
fn times(findings: &Findings, windows: &[Window]) -> anyhow::Result<Histogram<u64>> {
    let mut times = Histogram::new(3)?;
    let seen = findings.history.readings.iter().flat_map(|reading| &reading.seen);
    for seen in seen.filter(|seen| within(windows, seen)) {
        times.record(u64::try_from(seen.received - seen.at).unwrap_or_default())?;
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_lies_in_the_middle() {
        assert_eq!(median(vec![3.0, 100.0, 1.0]), 3.0);
        assert_eq!(median(vec![4.0, 100.0, 1.0, 2.0]), 3.0);
        assert_eq!(median(Vec::new()), 0.0);
    }
}
