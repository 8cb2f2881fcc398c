//! Load over gRPC: many clients submit runs, and each waits for the end of its run.
//!
//! A closed loop has a fixed number of clients, so a slow server gets fewer requests. An open loop starts runs at fixed times
//! whatever the server does. It counts latency from the time at which a run should have started, so a stalled server cannot
//! hide its delay.

mod sessions;
mod stages;
mod target;
mod verify;
mod work;

use std::{
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use rand::Rng as _;
use tokio::{runtime::Handle, sync::Semaphore};
use tokio_util::task::TaskTracker;

pub(crate) use self::{
    sessions::Sessions,
    stages::{Stage, StageTimings},
    target::LoadTarget,
    work::Work,
};
use crate::{
    check::Verdict,
    observed_history::{Micros, now},
};

/// The limit of concurrent runs in an open loop. Runs beyond it are not started, and reported.
const MAX_UNDER_WAY: usize = 20_000;

/// When runs start.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LoadModel {
    /// This many clients, each with one run at a time.
    Closed { clients: usize },
    /// This many runs per second, evenly spaced.
    Open { per_second: f64 },
}

/// One run as its client observed it.
#[derive(Clone, Debug)]
pub(crate) struct ObservedRun {
    /// The index of its session in the target.
    pub(crate) session: usize,
    pub(crate) id: String,
    pub(crate) seq: i64,
    pub(crate) completed: bool,
    pub(crate) sent: Micros,
    pub(crate) answered: Micros,
    /// By the server's clock.
    pub(crate) started: Micros,
    pub(crate) finished: Micros,
}

/// The result of some load.
#[derive(Debug)]
pub(crate) struct Measurement {
    /// From the time at which a run should start to its end at the client, in microseconds.
    pub(crate) latencies: Histogram<u64>,
    pub(crate) elapsed: Duration,
    /// The measured period by this machine's clock; the last one, if there were several.
    pub(crate) window: Range<Micros>,
    pub(crate) runs: Vec<ObservedRun>,
    /// Runs of an open loop that were not started because too many were under way.
    pub(crate) not_begun: u64,
}

impl Measurement {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let (latencies, elapsed) = (Histogram::new(3)?, Duration::ZERO);
        Ok(Self { latencies, elapsed, window: 0..0, runs: Vec::new(), not_begun: 0 })
    }

    /// Merges a measurement of another client or of another period.
    pub(crate) fn add(&mut self, other: Self) -> anyhow::Result<()> {
        self.latencies.add(other.latencies)?;
        self.elapsed += other.elapsed;
        self.runs.extend(other.runs);
        self.not_begun += other.not_begun;
        Ok(())
    }

    fn record(&mut self, begun: Instant, run: ObservedRun) -> anyhow::Result<()> {
        self.latencies.record(u64::try_from(begun.elapsed().as_micros())?)?;
        self.runs.push(run);
        Ok(())
    }

    pub(crate) fn runs_per_second(&self) -> f64 {
        self.latencies.len() as f64 / self.elapsed.as_secs_f64()
    }

    pub(crate) fn millis(&self, quantile: f64) -> f64 {
        self.latencies.value_at_quantile(quantile) as f64 / 1000.0
    }
}

/// Runs the load on a target for this time.
pub(crate) async fn drive(
    target: &Arc<LoadTarget>,
    work: &Work,
    model: LoadModel,
    time: Duration,
) -> anyhow::Result<Measurement> {
    let began = now();
    let measured = match model {
        LoadModel::Closed { clients } => closed(target, work, clients, time).await,
        LoadModel::Open { per_second } => open(target, work, per_second, time).await,
    };
    Ok(Measurement { window: began..now(), ..measured? })
}

async fn closed(
    target: &Arc<LoadTarget>,
    work: &Work,
    clients: usize,
    time: Duration,
) -> anyhow::Result<Measurement> {
    let (tasks, begun) = (TaskTracker::new(), Instant::now());
    let until = begun + time;
    let clients: Vec<_> = (0..clients)
        .map(|number| {
            let (target, work) = (Arc::clone(target), work.clone());
            tasks.spawn(async move {
                let mut measured = Measurement::new()?;
                while Instant::now() < until {
                    let begun = Instant::now();
                    let run = one_run(&target, &work, number).await?;
                    measured.record(begun, run)?;
                }
                anyhow::Ok(measured)
            })
        })
        .collect();
    let mut measured = Measurement::new()?;
    for client in clients {
        measured.add(client.await??)?;
    }
    Ok(Measurement { elapsed: begun.elapsed(), ..measured })
}

async fn open(
    target: &Arc<LoadTarget>,
    work: &Work,
    per_second: f64,
    time: Duration,
) -> anyhow::Result<Measurement> {
    let (tasks, begun, runtime) = (TaskTracker::new(), Instant::now(), Handle::current());
    let (permits, target, work) = (Arc::new(Semaphore::new(MAX_UNDER_WAY)), Arc::clone(target), work.clone());
    let begin = move || {
        let (mut under_way, mut not_begun) = (Vec::new(), 0);
        for (number, due) in due_times(begun, per_second).take_while(|(_, due)| *due < begun + time) {
            wait_until(due);
            let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else {
                not_begun += 1;
                continue;
            };
            let (target, work) = (Arc::clone(&target), work.clone());
            let run = async move {
                let run = one_run(&target, &work, number).await?;
                drop(permit);
                anyhow::Ok((due.elapsed(), run))
            };
            under_way.push(tasks.spawn_on(run, &runtime));
        }
        (under_way, not_begun)
    };
    let (under_way, not_begun) = tokio::task::spawn_blocking(begin).await?;
    let mut measured = Measurement { not_begun, ..Measurement::new()? };
    for run in under_way {
        let (took, run) = run.await??;
        measured.latencies.record(u64::try_from(took.as_micros())?)?;
        measured.runs.push(run);
    }
    Ok(Measurement { elapsed: begun.elapsed().max(time), ..measured })
}

/// The start times of runs, evenly spaced.
fn due_times(begun: Instant, per_second: f64) -> impl Iterator<Item = (usize, Instant)> {
    (0_u32..)
        .map(move |number| (number as usize, begun + Duration::from_secs_f64(f64::from(number) / per_second)))
}

/// Blocks until `due`. Tokio's timers have millisecond resolution, and would start several runs late and at once.
#[expect(clippy::disallowed_methods, reason = "a thread that does nothing else")]
fn wait_until(due: Instant) {
    std::thread::sleep(due.saturating_duration_since(Instant::now()));
}

/// Submits one run and waits for its end.
async fn one_run(target: &LoadTarget, work: &Work, client: usize) -> anyhow::Result<ObservedRun> {
    let session = rand::rng().random_range(0..target.sessions.len());
    let traced = target.stages.as_ref().and_then(|stages| stages.sample(rand::rng().random()));
    let (request, sent) = (work.request(&target.sessions.id(session)), now());
    let response = target.run(client, request, traced).await?;
    let run = target.observe(session, sent, &response)?;
    if let (Some(stages), Some(context)) = (&target.stages, traced) {
        stages.record_client(context, sent, run.answered);
    }
    Ok(run)
}

/// Checks the guarantees, as clients and event streams observed them.
pub(crate) async fn verify(
    target: &LoadTarget,
    work: &Work,
    runs: &[ObservedRun],
) -> anyhow::Result<Verdict> {
    verify::verify(target, work.calls(), runs).await
}
