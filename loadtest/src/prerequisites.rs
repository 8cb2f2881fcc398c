//! Finds the external programs that a test needs, and installs missing ones.

use std::path::PathBuf;

use remuda_testkit::{DockerEngine, packages};

/// Ensures PostgreSQL and returns the given nats-server or the installed one.
pub(crate) async fn ensure_servers(nats: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    tokio::task::spawn_blocking(move || {
        packages::postgres()?;
        nats.map_or_else(packages::nats_server, Ok)
    })
    .await?
}

/// Ensures a Docker engine and busybox, from which an image is made.
pub(crate) async fn ensure_docker() -> anyhow::Result<DockerEngine> {
    tokio::task::spawn_blocking(|| {
        packages::busybox()?;
        DockerEngine::find_or_start()
    })
    .await?
}
