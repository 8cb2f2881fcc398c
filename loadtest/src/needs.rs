//! Programs that are measured, or that what is measured needs: installed if they are missing.

use std::path::PathBuf;

use remuda_testkit::{DockerEngine, packages};

/// PostgreSQL, and the nats-server that was named or else the installed one.
pub(crate) async fn servers(nats: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    tokio::task::spawn_blocking(move || {
        packages::postgres()?;
        nats.map_or_else(packages::nats_server, Ok)
    })
    .await?
}

/// A Docker engine, and something to make an image of.
pub(crate) async fn docker() -> anyhow::Result<DockerEngine> {
    tokio::task::spawn_blocking(|| {
        packages::busybox()?;
        DockerEngine::find_or_start()
    })
    .await?
}
