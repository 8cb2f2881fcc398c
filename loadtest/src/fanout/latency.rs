//! The parts `latency` and `stall`: latency from commit to reader, with and without a stalled reader.
//!
//! Intervals with and without the stalled reader alternate under one load, and their medians are compared, so that a busy
//! moment of the machine does not affect only one of them.

use std::{ops::Range, sync::Arc, time::Duration};

use hdrhistogram::Histogram;
use serde_json::json;
use tokio::{sync::watch, time::sleep};

use super::{
    FanoutArgs,
    connection::Buffers,
    event_load::{Counts, EventLoad, EventLoadPlan},
    follower::ReadState,
    reader_group::{ReaderGroup, ReaderResults},
    report::{Goal, PartReport, rounded},
};
use crate::{
    deployment::Deployment,
    observed_history::{EventKind, Micros, ObservedEvent, now},
    os_stats::max_unsent_bytes,
};

const P99_GOAL_MS: f64 = 25.0;
const RATIO_GOAL: f64 = 1.10;
/// Intervals without and with a stalled reader, if each lasts at least [`SHORTEST_TURN`].
const MAX_TURNS: u64 = 8;
const SHORTEST_TURN: u64 = 2;
/// Load before the first interval, to fill caches and connection pools.
const WARM_UP: Duration = Duration::from_secs(3);
/// Pause after the reader stops, until the buffers are full, and after it resumes, until it has caught up.
const TURN_PAUSE: Duration = Duration::from_secs(2);
/// The share of all events that goes to the stalled reader's session, so that its backlog is large.
const FIRST_SHARE: f64 = 0.1;
const STALLED: &str = "the stalled reader";
/// An event is late if it took longer than this.
const LATE: Micros = 1_000_000;

/// A measurement interval.
pub(crate) type Window = Range<Micros>;

/// Everything that was observed.
struct Observation {
    quiet: Vec<Window>,
    counts: Arc<Counts>,
    results: ReaderResults,
    stall: Option<StallMeasurement>,
}

/// The intervals in which one reader did not read.
struct StallMeasurement {
    windows: Vec<Window>,
    /// What the stalled reader received.
    results: ReaderResults,
    /// The largest backlog of the stalled reader in the kernel.
    kernel_bytes: u64,
}

/// Runs the part `latency`, and `stall` if requested.
pub(super) async fn run(
    args: &FanoutArgs,
    deployment: &mut Deployment,
    stall: bool,
) -> anyhow::Result<Vec<PartReport>> {
    let observation = observe(args, deployment, stall).await?;
    let mut parts = vec![latency_report(args, &observation, deployment.problems())?];
    if let Some(stall) = &observation.stall {
        parts.push(stall_report(&observation, stall)?);
    }
    Ok(parts)
}

/// The result that `bench` reports: latency without a stalled reader.
pub(crate) struct FanoutMeasurement {
    /// From the commit of an event to each of its readers, in microseconds.
    pub(crate) latencies: Histogram<u64>,
    /// When readers received events.
    pub(crate) received: Vec<Micros>,
    pub(crate) window: Window,
    /// All runs of the load.
    pub(crate) runs: u64,
    pub(crate) runs_per_second: f64,
    /// Resident memory of the servers by name, in MiB.
    pub(crate) memory: Vec<(String, f64)>,
    pub(crate) violations: u64,
    pub(crate) failures: Vec<String>,
}

pub(super) async fn measure(
    args: &FanoutArgs,
    deployment: &mut Deployment,
) -> anyhow::Result<FanoutMeasurement> {
    let observation = observe(args, deployment, false).await?;
    let Observation { quiet, counts, results, .. } = &observation;
    let window = quiet.first().map_or(0, |first| first.start)..quiet.last().map_or(0, |last| last.end);
    let ended = results.history.streams.values().flatten().filter(|seen| within(quiet, seen));
    let ended = ended.filter(|seen| matches!(seen.kind, EventKind::Ended(_))).count() as f64;
    let seen = results.history.reader_logs.iter().flat_map(|log| &log.events);
    let part = PartReport::new("fanout", results, deployment.problems());
    Ok(FanoutMeasurement {
        latencies: times(results, quiet)?,
        received: seen.map(|seen| seen.received).filter(|at| window.contains(at)).collect(),
        runs: counts.accepted(),
        runs_per_second: ended / ((window.end - window.start).max(1) as f64 / 1e6),
        window,
        memory: deployment.memory(),
        violations: part.violations(),
        failures: part.failures(),
    })
}

async fn observe(args: &FanoutArgs, deployment: &Deployment, stall: bool) -> anyhow::Result<Observation> {
    let mut group = ReaderGroup::new(deployment, "flow", args.sessions).await?;
    let read_state = watch::channel(ReadState::ReaderLog).0;
    if stall {
        let mut reader = group.follower(0).named(STALLED);
        reader.buffers = Buffers::Small;
        reader.read_state = Some(read_state.subscribe());
        group.start(reader);
    }
    group.start_many(args.readers);
    group.wait_until_connected().await?;
    let plan = EventLoadPlan {
        failover: group.failover.clone(),
        sessions: group.sessions.clone(),
        events: args.rate,
        first_share: FIRST_SHARE,
        seed: args.seed,
    };
    let load = EventLoad::start(plan).await?;
    sleep(WARM_UP).await;
    let (mut quiet, mut stalled, mut kernel_bytes) = (Vec::new(), Vec::new(), 0);
    let turns = (args.seconds / SHORTEST_TURN).clamp(1, MAX_TURNS);
    let turn = Duration::from_secs_f64(args.seconds as f64 / turns as f64);
    for _ in 0..turns {
        quiet.push(window(turn).await);
        if stall {
            read_state.send_replace(ReadState::Stopped);
            sleep(TURN_PAUSE).await;
            stalled.push(window(turn).await);
            kernel_bytes = kernel_bytes.max(max_unsent_bytes(&deployment.servers())?);
            read_state.send_replace(ReadState::ReaderLog);
            sleep(TURN_PAUSE).await;
        }
    }
    let counts = load.stop().await?;
    let mut results = group.finish().await?;
    let stall = stall.then(|| StallMeasurement {
        windows: stalled,
        results: results.split_off(STALLED),
        kernel_bytes,
    });
    Ok(Observation { quiet, counts, results, stall })
}

async fn window(length: Duration) -> Window {
    let begin = now();
    sleep(length).await;
    begin..now()
}

fn latency_report(
    args: &FanoutArgs,
    observation: &Observation,
    problems: Vec<String>,
) -> anyhow::Result<PartReport> {
    let Observation { quiet, counts, results, .. } = observation;
    let mut part = PartReport::new("latency", results, problems);
    let seconds = quiet.iter().map(|window| window.end - window.start).sum::<Micros>() as f64 / 1e6;
    let events = results.history.streams.values().flatten().filter(|seen| within(quiet, seen));
    let events = rounded(events.count() as f64 / seconds);
    let times = times(results, quiet)?;
    let deliveries = rounded(times.len() as f64 / seconds);
    let (readers, sessions) = (args.readers, args.sessions);
    part.add("readers", json!(readers), "readers", format!("{readers} of {sessions} sessions"));
    part.add("events_per_s", json!(events), "events", format!("{events:.0}/s of {:.0}/s wanted", args.rate));
    part.add("deliveries_per_s", json!(deliveries), "deliveries", format!("{deliveries:.0}/s"));
    let (accepted, failed) = (counts.accepted(), counts.failed());
    part.add("runs", json!(accepted), "runs", format!("{accepted}, and {failed} submits that failed"));
    part.add_figure("failed_submits", json!(failed));
    part.add_times("latency_ms", &times, "commit to reader");
    part.add_goal(p99_goal(&times));
    Ok(part)
}

fn stall_report(observation: &Observation, stall: &StallMeasurement) -> anyhow::Result<PartReport> {
    let Observation { quiet, results, .. } = observation;
    let late = late_events(&stall.results);
    let mut problems = Vec::new();
    if late == 0 {
        problems.push(format!("{STALLED} got every event in time: the stall had no effect"));
    }
    let mut part = PartReport::new("stall", &stall.results, problems);
    let stalled = times(results, &stall.windows)?;
    part.add_times("quiet_ms", &times(results, quiet)?, "all readers read");
    part.add_times("stalled_ms", &stalled, "one reader stalled");
    // If the kernel held fewer bytes than came late, the server had to buffer or re-read the rest.
    let bytes = stall.results.bytes.iter().sum::<u64>() * late / stall.results.deliveries().max(1) as u64;
    let (bytes, kernel) = (bytes / stall.windows.len().max(1) as u64, stall.kernel_bytes);
    let text = format!("{late} events; {bytes} bytes each time, at most {kernel} of them in the kernel");
    part.add("late_events", json!(late), "late for the stalled reader", text);
    part.add_figure("late_bytes", json!(bytes));
    part.add_figure("kernel_bytes", json!(kernel));
    let ratio = median_p99(results, &stall.windows)? / median_p99(results, quiet)?;
    part.add_goal(Goal { name: "p99_ratio", measured: ratio, below: RATIO_GOAL, unit: "" });
    part.add_goal(p99_goal(&stalled));
    Ok(part)
}

/// The number of events that arrived late.
fn late_events(results: &ReaderResults) -> u64 {
    let seen = results.history.reader_logs.iter().flat_map(|log| &log.events);
    seen.filter(|seen| seen.received - seen.at > LATE).count() as u64
}

fn p99_goal(times: &Histogram<u64>) -> Goal {
    Goal { name: "p99_ms", measured: p99(times), below: P99_GOAL_MS, unit: " ms" }
}

/// In milliseconds.
fn p99(times: &Histogram<u64>) -> f64 {
    times.value_at_quantile(0.99) as f64 / 1000.0
}

/// The median over the intervals.
fn median_p99(results: &ReaderResults, windows: &[Window]) -> anyhow::Result<f64> {
    let of = |window: &Window| anyhow::Ok(p99(&times(results, std::slice::from_ref(window))?));
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

fn within(windows: &[Window], seen: &ObservedEvent) -> bool {
    windows.iter().any(|window| window.contains(&seen.at))
}

/// The time from event to reader, in microseconds. Events are dated under the lock of their session before the commit, so
/// the commit is part of the time.
fn times(results: &ReaderResults, windows: &[Window]) -> anyhow::Result<Histogram<u64>> {
    let mut times = Histogram::new(3)?;
    let seen = results.history.reader_logs.iter().flat_map(|log| &log.events);
    for seen in seen.filter(|seen| within(windows, seen)) {
        times.record(u64::try_from(seen.received - seen.at).unwrap_or_default())?;
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_even_and_empty_lists() {
        assert_eq!(median(vec![3.0, 100.0, 1.0]), 3.0);
        assert_eq!(median(vec![4.0, 100.0, 1.0, 2.0]), 3.0);
        assert_eq!(median(Vec::new()), 0.0);
    }
}
