//! The servers under test as child processes: embedded or as a cluster.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::ValueEnum;
use remuda_cluster::{Cluster, ClusterOptions, Member, find_or_build_remuda};
use remuda_testkit::preallocate_wal;
use tempfile::TempDir;

use crate::{
    chaos,
    database_seed::Database,
    os_stats::resident_kib,
    prerequisites,
    server::Server,
    workload::{Addresses, OperatorAccess},
};

/// How the servers are deployed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// One process on SQLite.
    Embedded,
    /// A control plane, a worker and a stream service on PostgreSQL and NATS.
    Split,
}

impl Mode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Split => "split",
        }
    }
}

/// The settings of a deployment.
#[derive(Clone, Debug)]
pub(crate) struct DeploymentOptions {
    /// Whether to use an optimised server. REMUDA_BIN names another binary.
    pub(crate) release: bool,
    /// The nats-server binary; the installed one if `None`.
    pub(crate) nats: Option<PathBuf>,
    /// Slots of the worker.
    pub(crate) slots: u32,
    /// Stream services of a cluster.
    pub(crate) streams: usize,
    /// More settings, as `REMUDA_<SECTION>__<KEY>` and a value.
    pub(crate) variables: Vec<(String, String)>,
}

impl DeploymentOptions {
    /// One process of each role, with enough slots that only the store limits the load.
    pub(crate) fn new(release: bool) -> Self {
        Self { release, nats: None, slots: 64, streams: 1, variables: Vec::new() }
    }

    /// The servers in the build profile of this program, so that both are optimised alike.
    pub(crate) fn same_profile() -> Self {
        Self::new(!cfg!(debug_assertions))
    }

    pub(crate) fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.variables.push((name.to_owned(), value.into()));
        self
    }

    async fn program(&self) -> anyhow::Result<PathBuf> {
        let release = self.release;
        tokio::task::spawn_blocking(move || find_or_build_remuda(release)).await?
    }
}

pub(crate) enum Deployment {
    Embedded {
        server: Server,
        /// Removed after the server has ended.
        _directory: TempDir,
    },
    Split(Box<Cluster>),
}

impl Deployment {
    pub(crate) async fn start(mode: Mode, options: &DeploymentOptions) -> anyhow::Result<Self> {
        match mode {
            Mode::Embedded => Self::embedded(options).await,
            Mode::Split => Self::split(options).await,
        }
    }

    /// `remuda dev` as one process.
    async fn embedded(options: &DeploymentOptions) -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new().prefix("remuda-loadtest-").tempdir()?;
        let mut variables = vec![("REMUDA_WORKER__SLOTS".to_owned(), options.slots.to_string())];
        variables.extend(options.variables.iter().cloned());
        let mut server = Server::new(options.program().await?, directory.path(), variables)?;
        server.start()?;
        server.wait_until_ready().await?;
        Ok(Self::Embedded { server, _directory: directory })
    }

    /// Separate processes on PostgreSQL and NATS, with the product's default times and without proxies: no faults are injected.
    async fn split(options: &DeploymentOptions) -> anyhow::Result<Self> {
        let nats = prerequisites::ensure_servers(options.nats.clone()).await?;
        let options = ClusterOptions {
            control_planes: 1,
            workers: 1,
            streams: options.streams,
            slots: options.slots,
            proxied: false,
            lease: Duration::from_secs(15),
            heartbeat: Duration::from_secs(3),
            reconciler_interval: Duration::from_secs(5),
            settings: options.variables.clone(),
            ..ClusterOptions::new(options.program().await?, nats)
        };
        let cluster = Cluster::start(options).await?;
        let database = cluster.postgres_url();
        tokio::task::spawn_blocking(move || preallocate_wal(&database)).await??;
        Ok(Self::Split(Box::new(cluster)))
    }

    pub(crate) fn cluster(&self) -> Option<&Cluster> {
        match self {
            Self::Embedded { .. } => None,
            Self::Split(cluster) => Some(cluster),
        }
    }

    pub(crate) fn addresses(&self) -> Addresses {
        match self {
            Self::Embedded { server, .. } => server.addresses(),
            Self::Split(cluster) => Addresses {
                control_planes: cluster.control_plane_endpoints(),
                streams: cluster.stream_endpoints(),
                api_key: Some(cluster.api_key().to_owned()),
                operator: Some(OperatorAccess::of(cluster)),
            },
        }
    }

    /// Stops the servers gracefully and keeps their database.
    pub(crate) async fn suspend(&mut self) -> anyhow::Result<()> {
        match self {
            Self::Embedded { server, .. } => server.stop().await,
            Self::Split(cluster) => cluster.suspend().await,
        }
    }

    /// Starts the servers again, and returns when they serve.
    pub(crate) async fn resume(&mut self) -> anyhow::Result<()> {
        match self {
            Self::Embedded { server, .. } => {
                server.start()?;
                server.wait_until_ready().await
            }
            Self::Split(cluster) => cluster.resume().await,
        }
    }

    /// Connects to the database directly.
    pub(crate) async fn database(&self) -> anyhow::Result<Database> {
        match self {
            Self::Embedded { server, .. } => Database::sqlite(&server.database()).await,
            Self::Split(cluster) => Database::postgres(&cluster.postgres_url()).await,
        }
    }

    /// The addresses that serve streams.
    pub(crate) fn servers(&self) -> Vec<SocketAddr> {
        match self {
            Self::Embedded { server, .. } => vec![server.address()],
            Self::Split(cluster) => cluster.streams().iter().filter_map(Member::address).collect(),
        }
    }

    /// The process that serves streams; the first if there are several.
    pub(crate) fn stream_pid(&self) -> Option<u32> {
        match self {
            Self::Embedded { server, .. } => server.pid(),
            Self::Split(cluster) => cluster.streams().first()?.pid(),
        }
    }

    /// Resident memory of each server and of nats-server, in MiB.
    pub(crate) fn memory(&self) -> Vec<(String, f64)> {
        let servers: Vec<(String, Option<u32>)> = match self {
            Self::Embedded { server, .. } => vec![("remuda".to_owned(), server.pid())],
            Self::Split(cluster) => {
                let members = cluster.members().map(|member| (member.name().to_owned(), member.pid()));
                let broker = cluster.processes().into_iter().find(|it| it.cmdline.contains("nats-server"));
                members.chain(broker.map(|it| ("nats-server".to_owned(), Some(it.pid)))).collect()
            }
        };
        let resident = |(name, pid): (String, Option<u32>)| Some((name, resident_kib(pid?).ok()? / 1024.0));
        servers.into_iter().filter_map(resident).collect()
    }

    /// Unexpected deaths and panics.
    pub(crate) fn problems(&mut self) -> Vec<String> {
        match self {
            Self::Embedded { server, .. } => {
                server.problems().unwrap_or_else(|error| vec![format!("{error:#}")])
            }
            Self::Split(cluster) => chaos::problems(cluster),
        }
    }

    /// Keeps the logs of a cluster.
    pub(crate) fn mark_failed(&self) {
        if let Some(cluster) = self.cluster() {
            cluster.mark_failed();
        }
    }
}
