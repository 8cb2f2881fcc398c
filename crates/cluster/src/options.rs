//! The options of a cluster.

use std::{path::PathBuf, time::Duration};

/// The binaries, sizes and times of a cluster.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// The `remuda` binary, from [`find_or_build_remuda`](crate::find_or_build_remuda).
    pub remuda: PathBuf,
    /// The nats-server binary.
    pub nats: PathBuf,
    pub control_planes: usize,
    pub workers: usize,
    pub streams: usize,
    /// Slots of each worker.
    pub slots: u32,
    /// The lease of a worker.
    pub lease: Duration,
    pub heartbeat: Duration,
    pub reconciler_interval: Duration,
    /// How long a draining worker waits for its steps to end before it hands over.
    pub drain_deadline: Duration,
    /// How long a start is retried until the process serves. Longer than a process waits for a service, because a fault may have
    /// stopped the service.
    pub start_timeout: Duration,
    /// How long `postgres-pause` stops the database.
    pub postgres_pause: Duration,
    /// Whether the tables of PostgreSQL are on a disk of their own, which `postgres-full` fills. It is in memory, and mounting it
    /// needs root.
    pub small_disk: bool,
    /// Whether each process reaches PostgreSQL and NATS through its own proxies. Without proxies no link can be cut, and they do
    /// not affect measurements.
    pub proxied: bool,
    /// More settings for every process, as `REMUDA_<SECTION>__<KEY>` and a value.
    pub settings: Vec<(String, String)>,
    /// Whether to keep the logs even if nothing failed.
    pub keep_logs: bool,
}

impl ClusterOptions {
    /// Two control planes, three workers and two stream services, with short times, so that every recovery happens within seconds.
    #[must_use]
    pub fn new(remuda: PathBuf, nats: PathBuf) -> Self {
        Self {
            remuda,
            nats,
            control_planes: 2,
            workers: 3,
            streams: 2,
            slots: 8,
            lease: Duration::from_secs(3),
            heartbeat: Duration::from_millis(500),
            reconciler_interval: Duration::from_millis(500),
            drain_deadline: Duration::from_secs(5),
            start_timeout: Duration::from_secs(90),
            postgres_pause: Duration::from_secs(10),
            small_disk: false,
            proxied: true,
            settings: Vec::new(),
            keep_logs: false,
        }
    }

    /// The settings that all processes share.
    pub(crate) fn variables(&self) -> Vec<(String, String)> {
        let time = |duration: Duration| humantime::format_duration(duration).to_string();
        let mut variables: Vec<(String, String)> = [
            ("REMUDA_WORKER__SLOTS", self.slots.to_string()),
            ("REMUDA_WORKER__LEASE", time(self.lease)),
            ("REMUDA_WORKER__HEARTBEAT", time(self.heartbeat)),
            ("REMUDA_WORKER__DRAIN_DEADLINE", time(self.drain_deadline)),
            ("REMUDA_RECONCILER__INTERVAL", time(self.reconciler_interval)),
            // After a control plane was killed, the other must be able to lead the reconciler soon.
            ("REMUDA_RECONCILER__LEASE", time(self.reconciler_interval * 4)),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        variables.extend(self.settings.iter().cloned());
        variables
    }
}
