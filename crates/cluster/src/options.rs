//! What a cluster is made of.

use std::{path::PathBuf, time::Duration};

/// What a cluster is made of, and how it is set.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// The binary, as [`find_or_build_remuda`](crate::find_or_build_remuda) gives it.
    pub remuda: PathBuf,
    /// The nats-server binary.
    pub nats: PathBuf,
    pub control_planes: usize,
    pub workers: usize,
    pub streams: usize,
    /// Sessions one worker works on at once.
    pub slots: u32,
    /// How long a silent worker keeps its sessions.
    pub lease: Duration,
    pub heartbeat: Duration,
    pub reconciler_interval: Duration,
    /// How long a stopping worker waits for a good moment to hand over.
    pub drain_deadline: Duration,
    /// How long to try until a process serves. Longer than a process itself waits for a service that is away, which a fault may
    /// have sent there.
    pub start_patience: Duration,
    /// How long `postgres-pause` stops the database.
    pub postgres_pause: Duration,
    /// Each process reaches PostgreSQL and NATS through proxies of its own. Without them no link can be cut, and nothing stands in
    /// the way of what is measured.
    pub proxied: bool,
    /// More settings for every process, as `REMUDA_<SECTION>__<KEY>` and a value.
    pub settings: Vec<(String, String)>,
    /// Keeps the logs also when nothing failed.
    pub keep_logs: bool,
}

impl ClusterOptions {
    /// Two control planes, three workers and two stream services, with times so short that every kind of recovery happens
    /// within seconds.
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
            start_patience: Duration::from_secs(90),
            postgres_pause: Duration::from_secs(10),
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
            // A control plane that was killed must not keep the other from sweeping for long.
            ("REMUDA_RECONCILER__LEASE", time(self.reconciler_interval * 4)),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        variables.extend(self.settings.iter().cloned());
        variables
    }
}
