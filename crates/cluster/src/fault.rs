//! Faults that are injected into a cluster and healed again.

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

use anyhow::{Context, Result, ensure};
use chrono::{DateTime, Utc};
use clap::ValueEnum;
use rand::Rng;
use remuda_testkit::{Process, SmallDisk};
use serde::{Deserialize, Serialize};

use crate::{clock::library, cluster::Cluster};

/// The kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// Kills a worker with SIGKILL, preferably one that executes tools.
    WorkerKill,
    /// Stops a worker (SIGSTOP) for longer than its lease and then continues it.
    WorkerStall,
    /// Drains a worker with SIGTERM and starts it again.
    WorkerDrain,
    /// Cuts a control plane off from NATS while it accepts runs, and kills it before it can publish their tokens.
    ControlPlaneKill,
    /// Kills a stream service, preferably one with readers.
    StreamKill,
    /// Stops NATS gracefully and starts it again.
    NatsRestart,
    /// Kills NATS and starts it again on its store.
    NatsKill,
    /// Kills NATS, deletes its store, and starts it again.
    NatsWipe,
    /// Changes the settings of the token stream or deletes its consumer.
    NatsSettings,
    /// Crashes PostgreSQL (immediate mode) and starts it again.
    PostgresRestart,
    /// Stops all PostgreSQL processes (SIGSTOP) for a while; connections stay open.
    PostgresPause,
    /// Fills the disk of PostgreSQL's tables for some seconds. Needs root, and [`ClusterOptions::small_disk`].
    ///
    /// [`ClusterOptions::small_disk`]: crate::ClusterOptions::small_disk
    PostgresFull,
    /// Cuts a worker off from NATS.
    CutWorkerNats,
    /// Cuts a worker off from PostgreSQL.
    CutWorkerPostgres,
    /// Adds latency to the links of a worker.
    SlowLinks,
    /// Lets the wall clock of a worker jump forwards and backwards. Needs libfaketime.
    ClockJump,
}

/// An injected fault.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FaultRecord {
    pub kind: FaultKind,
    /// What it hit, such as `worker-1` or `nats`.
    pub target: String,
    /// When it hit.
    pub began: DateTime<Utc>,
    /// When the fault was healed and everything restarted. The system may need longer to recover.
    pub ended: DateTime<Utc>,
    /// Details in words.
    pub note: String,
    /// Tool processes of the hit worker that were alive at the end of its lease, which must be none.
    pub survivors: Option<usize>,
    /// Misbehaviour of the system that the fault observed. Empty if there was none.
    pub problems: Vec<String>,
}

/// The result of a fault.
#[derive(Debug)]
struct Outcome {
    target: String,
    began: DateTime<Utc>,
    note: String,
    survivors: Option<usize>,
    problems: Vec<String>,
}

impl Outcome {
    /// `began` is when the target was hit, not when it was chosen.
    fn new(target: &str, began: DateTime<Utc>, note: String) -> Self {
        Self { target: target.to_owned(), began, note, survivors: None, problems: Vec::new() }
    }

    /// Records the tool processes that outlived the lease of their worker, out of `tools`.
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
    /// All kinds.
    #[must_use]
    pub fn all() -> &'static [Self] {
        Self::value_variants()
    }

    /// Fails if this machine lacks a program that the fault needs. The error names it.
    pub fn check_available(self) -> Result<()> {
        match self {
            Self::ClockJump => library().map(drop),
            Self::PostgresFull => {
                ensure!(SmallDisk::is_available(), "mounting a disk needs root");
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Injects the fault and heals it. An error is one of the injection or the healing; misbehaviour of the system under test is
    /// in [`FaultRecord::problems`].
    ///
    /// Faults may be injected concurrently: each reserves a target, and waits for one if all are reserved.
    pub async fn inject<R: Rng>(self, cluster: &Cluster, rng: &mut R) -> Result<FaultRecord> {
        tracing::info!(fault = %self, "fault begins");
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
            Self::PostgresFull => postgres::fill(cluster, rng).await,
            Self::CutWorkerNats => links::cut_nats(cluster, rng).await,
            Self::CutWorkerPostgres => links::cut_postgres(cluster, rng).await,
            Self::SlowLinks => links::slow(cluster, rng).await,
            Self::ClockJump => clock::jump(cluster, rng).await,
        };
        let Outcome { target, began, note, survivors, problems } =
            outcome.with_context(|| format!("fault {self} failed"))?;
        let ended = Utc::now();
        tracing::info!(fault = %self, target, note, "fault healed");
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

/// How long a target stays down before it is started again.
fn absence(rng: &mut impl Rng) -> Duration {
    millis(rng, 100..=2000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_names_agree_in_display_serde_and_clap() {
        assert_eq!(FaultKind::all().len(), 16);
        for kind in FaultKind::all() {
            let name = kind.to_string();
            assert_eq!(serde_json::to_value(kind).unwrap(), name.as_str());
            assert_eq!(FaultKind::from_str(&name, false).unwrap(), *kind);
        }
        assert_eq!(FaultKind::CutWorkerNats.to_string(), "cut-worker-nats");
    }
}
