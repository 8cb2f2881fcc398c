//! Load over gRPC: runs that are submitted by many clients, each of whom waits for the end of its run.
//!
//! A closed loop keeps a number of clients busy, so that a slow server is asked less. An open loop begins runs at their times whatever
//! the server does, and counts the latency of each from the time at which it should have begun: a server that stalls cannot hide it.

mod judge;
mod sessions;
mod site;
mod stages;
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
    site::Site,
    stages::{Stage, Stages},
    work::Work,
};
use crate::{
    check::Verdict,
    history::{Micros, now},
};

/// Runs under way at once in an open loop. What comes on top is not begun, and told.
const MOST_UNDER_WAY: usize = 20_000;

/// When runs begin.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// So many clients, each with one run at a time.
    Closed { clients: usize },
    /// So many runs per second, at even distances.
    Open { per_second: f64 },
}

/// One run, as its client saw it.
#[derive(Clone, Debug)]
pub(crate) struct RunFact {
    /// The place of its session among those of the site.
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

/// What came of some load.
#[derive(Debug)]
pub(crate) struct Measured {
    /// From the moment at which a run should begin to its end at the client, in microseconds.
    pub(crate) latencies: Histogram<u64>,
    pub(crate) elapsed: Duration,
    /// From its beginning to its end by this machine's clock; the last one, if there were several turns.
    pub(crate) window: Range<Micros>,
    pub(crate) facts: Vec<RunFact>,
    /// Runs of an open loop that were not begun, because too many were under way.
    pub(crate) not_begun: u64,
}

impl Measured {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let (latencies, elapsed) = (Histogram::new(3)?, Duration::ZERO);
        Ok(Self { latencies, elapsed, window: 0..0, facts: Vec::new(), not_begun: 0 })
    }

    /// Takes over what another one did at the same time, or in another turn.
    pub(crate) fn add(&mut self, other: Self) -> anyhow::Result<()> {
        self.latencies.add(other.latencies)?;
        self.elapsed += other.elapsed;
        self.facts.extend(other.facts);
        self.not_begun += other.not_begun;
        Ok(())
    }

    fn note(&mut self, begun: Instant, fact: RunFact) -> anyhow::Result<()> {
        self.latencies.record(u64::try_from(begun.elapsed().as_micros())?)?;
        self.facts.push(fact);
        Ok(())
    }

    pub(crate) fn runs_per_second(&self) -> f64 {
        self.latencies.len() as f64 / self.elapsed.as_secs_f64()
    }

    pub(crate) fn millis(&self, quantile: f64) -> f64 {
        self.latencies.value_at_quantile(quantile) as f64 / 1000.0
    }
}

/// Drives some work on a site for so long.
pub(crate) async fn drive(
    site: &Arc<Site>,
    work: &Work,
    pace: Pace,
    time: Duration,
) -> anyhow::Result<Measured> {
    let began = now();
    let measured = match pace {
        Pace::Closed { clients } => closed(site, work, clients, time).await,
        Pace::Open { per_second } => open(site, work, per_second, time).await,
    };
    Ok(Measured { window: began..now(), ..measured? })
}

async fn closed(site: &Arc<Site>, work: &Work, clients: usize, time: Duration) -> anyhow::Result<Measured> {
    let (tasks, begun) = (TaskTracker::new(), Instant::now());
    let until = begun + time;
    let clients: Vec<_> = (0..clients)
        .map(|number| {
            let (site, work) = (Arc::clone(site), work.clone());
            tasks.spawn(async move {
                let mut measured = Measured::new()?;
                while Instant::now() < until {
                    let begun = Instant::now();
                    let fact = one_run(&site, &work, number).await?;
                    measured.note(begun, fact)?;
                }
                anyhow::Ok(measured)
            })
        })
        .collect();
    let mut measured = Measured::new()?;
    for client in clients {
        measured.add(client.await??)?;
    }
    Ok(Measured { elapsed: begun.elapsed(), ..measured })
}

async fn open(site: &Arc<Site>, work: &Work, per_second: f64, time: Duration) -> anyhow::Result<Measured> {
    let (tasks, begun, runtime) = (TaskTracker::new(), Instant::now(), Handle::current());
    let (room, site, work) = (Arc::new(Semaphore::new(MOST_UNDER_WAY)), Arc::clone(site), work.clone());
    let begin = move || {
        let (mut under_way, mut not_begun) = (Vec::new(), 0);
        for (number, due) in dues(begun, per_second).take_while(|(_, due)| *due < begun + time) {
            wait_until(due);
            let Ok(permit) = Arc::clone(&room).try_acquire_owned() else {
                not_begun += 1;
                continue;
            };
            let (site, work) = (Arc::clone(&site), work.clone());
            let run = async move {
                let fact = one_run(&site, &work, number).await?;
                drop(permit);
                anyhow::Ok((due.elapsed(), fact))
            };
            under_way.push(tasks.spawn_on(run, &runtime));
        }
        (under_way, not_begun)
    };
    let (under_way, not_begun) = tokio::task::spawn_blocking(begin).await?;
    let mut measured = Measured { not_begun, ..Measured::new()? };
    for run in under_way {
        let (took, fact) = run.await??;
        measured.latencies.record(u64::try_from(took.as_micros())?)?;
        measured.facts.push(fact);
    }
    Ok(Measured { elapsed: begun.elapsed().max(time), ..measured })
}

/// When runs are due, at even distances.
fn dues(begun: Instant, per_second: f64) -> impl Iterator<Item = (usize, Instant)> {
    (0_u32..)
        .map(move |number| (number as usize, begun + Duration::from_secs_f64(f64::from(number) / per_second)))
}

/// The runtime's own timers know nothing shorter than a millisecond, and would begin several runs at once and late.
#[expect(clippy::disallowed_methods, reason = "a thread that does nothing else")]
fn wait_until(due: Instant) {
    std::thread::sleep(due.saturating_duration_since(Instant::now()));
}

/// Submits one run and waits for its end.
async fn one_run(site: &Site, work: &Work, client: usize) -> anyhow::Result<RunFact> {
    let session = rand::rng().random_range(0..site.sessions.len());
    let traced = site.stages.as_ref().and_then(|stages| stages.chosen(rand::rng().random()));
    let (request, sent) = (work.request(&site.sessions.id(session)), now());
    let run = site.run(client, request, traced).await?;
    let fact = site.fact(session, sent, &run)?;
    if let (Some(stages), Some(context)) = (&site.stages, traced) {
        stages.seen(context, sent, fact.answered);
    }
    Ok(fact)
}

/// Whether everything that was promised was kept, as clients and the sessions' own streams see it.
pub(crate) async fn judge(site: &Site, work: &Work, facts: &[RunFact]) -> anyhow::Result<Verdict> {
    judge::judge(site, work.calls(), facts).await
}
