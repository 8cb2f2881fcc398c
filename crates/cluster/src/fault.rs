//! Bad things that happen to a cluster, each with its end.

mod clock;
mod control_plane;
mod links;
mod nats;
mod nats_settings;
mod postgres;
mod stream;
mod target;
mod worker;

use std::{fmt, time::Duration};

use anyhow::{Context, Result};
use chrono::{DateTime, Utc};
use clap::ValueEnum;
use rand::Rng;
use remuda_testkit::Process;
use serde::{Deserialize, Serialize};

use crate::{clock::library, cluster::Cluster};

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// A worker, if possible one that executes tools, is killed with SIGKILL.
    WorkerKill,
    /// A worker is stopped for longer than its lease and then goes on, as a zombie.
    WorkerStall,
    /// A worker is asked to end with SIGTERM, and another takes its place.
    WorkerDrain,
    /// A control plane loses NATS while it accepts runs, and is killed before it can wake anybody for them.
    ControlPlaneKill,
    /// A stream service, if possible one with readers, is killed.
    StreamKill,
    /// NATS ends in order and is started again.
    NatsRestart,
    /// NATS is killed and started again on its store.
    NatsKill,
    /// NATS is killed, loses its store and is started again.
    NatsWipe,
    /// Somebody changes the token stream or removes its consumer by hand.
    NatsSettings,
    /// PostgreSQL crashes (immediate mode) and recovers.
    PostgresRestart,
    /// PostgreSQL stands still for a while, with all its connections.
    PostgresPause,
    /// A worker is cut off from NATS.
    CutWorkerNats,
    /// A worker is cut off from PostgreSQL.
    CutWorkerPostgres,
    /// Every byte from and to a worker takes its time.
    SlowLinks,
    /// The wall clock of a worker jumps forwards and backwards. Needs libfaketime.
    ClockJump,
}

/// One fault that happened.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FaultRecord {
    pub kind: FaultKind,
    /// Whom it hit, such as `worker-1` or `nats`.
    pub target: String,
    /// When it hit.
    pub began: DateTime<Utc>,
    /// When everything was healed and restarted. The system may need longer to recover.
    pub ended: DateTime<Utc>,
    /// What exactly was done, for people.
    pub note: String,
    /// Tool processes of the hit worker that lived on when they must not: at the end of its lease.
    pub survivors: Option<usize>,
    /// What the system did wrong that can be seen from here. Empty when all is well.
    pub problems: Vec<String>,
}

/// What a fault has to say when it is over.
#[derive(Debug)]
struct Outcome {
    target: String,
    began: DateTime<Utc>,
    note: String,
    survivors: Option<usize>,
    problems: Vec<String>,
}

impl Outcome {
    /// `began` is when the target was hit, not when it was looked for.
    fn of(target: &str, began: DateTime<Utc>, note: String) -> Self {
        Self { target: target.to_owned(), began, note, survivors: None, problems: Vec::new() }
    }

    /// Notes which tool processes outlived the lease of their worker, of how many.
    fn with_survivors(mut self, survivors: &[Process], tools: usize) -> Self {
        self.survivors = Some(survivors.len());
        if !survivors.is_empty() {
            let named =
                |it: &Process| format!("{} {:?}", it.pid, it.cmdline.chars().take(120).collect::<String>());
            let names: Vec<String> = survivors.iter().map(named).collect();
            let (count, target) = (survivors.len(), &self.target);
            let problem = format!(
                "{count} of {tools} tool processes of {target} outlived its lease: {}",
                names.join(", ")
            );
            self.problems.push(problem);
        }
        self
    }
}

impl FaultKind {
    /// Every kind.
    #[must_use]
    pub fn all() -> &'static [Self] {
        Self::value_variants()
    }

    /// Whether this machine has what the fault needs; the error says what to install.
    pub fn check_available(self) -> Result<()> {
        match self {
            Self::ClockJump => library().map(drop),
            _ => Ok(()),
        }
    }

    /// Does it, and undoes it. The error is one of the injection or the healing, not of the system under test, which
    /// [`FaultRecord::problems`] speaks of.
    ///
    /// Faults may be injected at the same time: each takes a target that no other has, and waits for one if need be.
    pub async fn inject<R: Rng>(self, cluster: &Cluster, rng: &mut R) -> Result<FaultRecord> {
        tracing::info!(fault = %self, "a fault begins");
        let outcome = match self {
            Self::WorkerKill => worker::kill(cluster, rng).await,
            Self::WorkerStall => worker::stall(cluster, rng).await,
            Self::WorkerDrain => worker::drain(cluster, rng).await,
            Self::ControlPlaneKill => control_plane::kill(cluster, rng).await,
            Self::StreamKill => stream::kill(cluster, rng).await,
            Self::NatsRestart => nats::restart(cluster, rng).await,
            Self::NatsKill => nats::kill(cluster, rng).await,
            Self::NatsWipe => nats::wipe(cluster, rng).await,
            Self::NatsSettings => nats_settings::change(cluster, rng).await,
            Self::PostgresRestart => postgres::restart(cluster, rng).await,
            Self::PostgresPause => postgres::pause(cluster).await,
            Self::CutWorkerNats => links::cut_nats(cluster, rng).await,
            Self::CutWorkerPostgres => links::cut_postgres(cluster, rng).await,
            Self::SlowLinks => links::slow(cluster, rng).await,
            Self::ClockJump => clock::jump(cluster, rng).await,
        };
        let Outcome { target, began, note, survivors, problems } =
            outcome.with_context(|| format!("fault {self} failed"))?;
        let ended = Utc::now();
        tracing::info!(fault = %self, target, note, "a fault is over");
        Ok(FaultRecord { kind: self, target, began, ended, note, survivors, problems })
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or("", |value| value.get_name()))
    }
}

/// A random time from this range of milliseconds.
fn millis(rng: &mut impl Rng, range: std::ops::RangeInclusive<u64>) -> Duration {
    Duration::from_millis(rng.random_range(range))
}

/// How long something stays dead before it is started again.
fn absence(rng: &mut impl Rng) -> Duration {
    millis(rng, 100..=2000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_same_everywhere() {
        assert_eq!(FaultKind::all().len(), 15);
        for kind in FaultKind::all() {
            let name = kind.to_string();
            assert_eq!(serde_json::to_value(kind).unwrap(), name.as_str());
            assert_eq!(FaultKind::from_str(&name, false).unwrap(), *kind);
        }
        assert_eq!(FaultKind::CutWorkerNats.to_string(), "cut-worker-nats");
    }
}
