//! The servers under test.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context as _;
use remuda_cluster::{Cluster, ClusterOptions, Member, find_or_build_remuda};
use remuda_testkit::find_program;
use tempfile::TempDir;

use super::{FanoutArgs, connection::Places};
use crate::{chaos, server::Server, workload::Addresses};

/// Sessions that are worked on at once: the load shall wait for nothing but the store.
const SLOTS: u32 = 64;

pub(super) enum Stage {
    Embedded {
        server: Server,
        /// Removed with everything in it when the server is gone.
        _directory: TempDir,
    },
    Split(Box<Cluster>),
}

impl Stage {
    /// `remuda dev` as one process.
    pub(super) async fn embedded(args: &FanoutArgs) -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new().prefix("remuda-fanout-").tempdir()?;
        let program = program(args).await?;
        let mut server = start(program, directory.path())?;
        server.wait_until_ready().await?;
        Ok(Self::Embedded { server, _directory: directory })
    }

    /// A control plane, a worker and so many stream services, on PostgreSQL and NATS.
    pub(super) async fn split(args: &FanoutArgs, streams: usize) -> anyhow::Result<Self> {
        let nats = args.nats.clone().or_else(|| find_program("nats-server"));
        let nats = nats.context("no nats-server found; install it, or name one with --nats")?;
        let options = ClusterOptions {
            control_planes: 1,
            workers: 1,
            streams,
            slots: SLOTS,
            ..ClusterOptions::new(program(args).await?, nats)
        };
        Ok(Self::Split(Box::new(Cluster::start(options).await?)))
    }

    pub(super) fn cluster(&self) -> Option<&Cluster> {
        match self {
            Self::Embedded { .. } => None,
            Self::Split(cluster) => Some(cluster),
        }
    }

    pub(super) fn addresses(&self) -> Addresses {
        match self {
            Self::Embedded { server, .. } => server.addresses(),
            Self::Split(cluster) => Addresses {
                control_planes: cluster.control_plane_endpoints(),
                streams: cluster.stream_endpoints(),
                api_key: Some(cluster.api_key().to_owned()),
            },
        }
    }

    /// Those who serve streams.
    pub(super) fn servers(&self) -> Vec<SocketAddr> {
        match self {
            Self::Embedded { server, .. } => vec![server.address()],
            Self::Split(cluster) => cluster.streams().iter().filter_map(Member::address).collect(),
        }
    }

    /// Where readers find their streams.
    pub(super) fn places(&self) -> Arc<Places> {
        Arc::new(Places::new(self.servers(), self.addresses().api_key))
    }

    /// The process that serves streams; the first if there are several.
    pub(super) fn pid(&self) -> Option<u32> {
        match self {
            Self::Embedded { server, .. } => server.pid(),
            Self::Split(cluster) => cluster.streams().first()?.pid(),
        }
    }

    /// Deaths that nobody ordered, and panics.
    pub(super) fn troubles(&mut self) -> Vec<String> {
        match self {
            Self::Embedded { server, .. } => {
                server.troubles().unwrap_or_else(|error| vec![format!("{error:#}")])
            }
            Self::Split(cluster) => chaos::troubles(cluster),
        }
    }

    /// Logs are kept, where there are several.
    pub(super) fn mark_failed(&self) {
        if let Some(cluster) = self.cluster() {
            cluster.mark_failed();
        }
    }
}

async fn program(args: &FanoutArgs) -> anyhow::Result<PathBuf> {
    let release = args.release;
    tokio::task::spawn_blocking(move || find_or_build_remuda(release)).await?
}

fn start(program: PathBuf, directory: &Path) -> anyhow::Result<Server> {
    let settings = vec![("REMUDA_WORKER__SLOTS", SLOTS.to_string())];
    let mut server = Server::new(program, directory, settings)?;
    server.start()?;
    Ok(server)
}
