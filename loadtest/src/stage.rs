//! The servers under test: processes of their own, embedded or as a cluster.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::ValueEnum;
use remuda_cluster::{Cluster, ClusterOptions, Member, find_or_build_remuda};
use remuda_testkit::age_postgres;
use tempfile::TempDir;

use crate::{chaos, kernel::resident_kib, needs, seed::Database, server::Server, workload::Addresses};

/// How the servers are put together.
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

/// What stands on a stage.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    /// The release profile. REMUDA_BIN names another binary.
    pub(crate) release: bool,
    /// The nats-server binary. The installed one if missing.
    pub(crate) nats: Option<PathBuf>,
    /// Sessions that are worked on at once.
    pub(crate) slots: u32,
    /// Stream services of a cluster.
    pub(crate) streams: usize,
    /// More settings, as `REMUDA_<SECTION>__<KEY>` and a value.
    pub(crate) variables: Vec<(String, String)>,
}

impl Setting {
    /// One of everything, with so many slots that the load waits for nothing but the store.
    pub(crate) fn new(release: bool) -> Self {
        Self { release, nats: None, slots: 64, streams: 1, variables: Vec::new() }
    }

    /// The profile that this program was built in: what is measured should be as quick as what measures.
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

pub(crate) enum Stage {
    Embedded {
        server: Server,
        /// Removed with everything in it when the server is gone.
        _directory: TempDir,
    },
    Split(Box<Cluster>),
}

impl Stage {
    pub(crate) async fn start(mode: Mode, setting: &Setting) -> anyhow::Result<Self> {
        match mode {
            Mode::Embedded => Self::embedded(setting).await,
            Mode::Split => Self::split(setting).await,
        }
    }

    /// `remuda dev` as one process.
    async fn embedded(setting: &Setting) -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new().prefix("remuda-loadtest-").tempdir()?;
        let mut variables = vec![("REMUDA_WORKER__SLOTS".to_owned(), setting.slots.to_string())];
        variables.extend(setting.variables.iter().cloned());
        let mut server = Server::new(setting.program().await?, directory.path(), variables)?;
        server.start()?;
        server.wait_until_ready().await?;
        Ok(Self::Embedded { server, _directory: directory })
    }

    /// On PostgreSQL and NATS, with the product's own times and without proxies in between: nothing is broken here.
    async fn split(setting: &Setting) -> anyhow::Result<Self> {
        let nats = needs::servers(setting.nats.clone()).await?;
        let options = ClusterOptions {
            control_planes: 1,
            workers: 1,
            streams: setting.streams,
            slots: setting.slots,
            proxied: false,
            lease: Duration::from_secs(15),
            heartbeat: Duration::from_secs(3),
            reconciler_interval: Duration::from_secs(5),
            settings: setting.variables.clone(),
            ..ClusterOptions::new(setting.program().await?, nats)
        };
        let cluster = Cluster::start(options).await?;
        let database = cluster.postgres_url();
        tokio::task::spawn_blocking(move || age_postgres(&database)).await??;
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
            },
        }
    }

    /// Ends the servers in an orderly way, while their database stays.
    pub(crate) async fn rest(&mut self) -> anyhow::Result<()> {
        match self {
            Self::Embedded { server, .. } => server.stop().await,
            Self::Split(cluster) => cluster.rest().await,
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

    /// The database itself, past the servers.
    pub(crate) async fn database(&self) -> anyhow::Result<Database> {
        match self {
            Self::Embedded { server, .. } => Database::sqlite(&server.database()).await,
            Self::Split(cluster) => Database::postgres(&cluster.postgres_url()).await,
        }
    }

    /// Those who serve streams.
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

    /// Resident memory of each server, in MiB, and of the broker, which holds the tokens.
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

    /// Deaths that nobody ordered, and panics.
    pub(crate) fn troubles(&mut self) -> Vec<String> {
        match self {
            Self::Embedded { server, .. } => {
                server.troubles().unwrap_or_else(|error| vec![format!("{error:#}")])
            }
            Self::Split(cluster) => chaos::troubles(cluster),
        }
    }

    /// Logs are kept, where there are several.
    pub(crate) fn mark_failed(&self) {
        if let Some(cluster) = self.cluster() {
            cluster.mark_failed();
        }
    }
}
