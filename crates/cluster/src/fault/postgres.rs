//! Faults that crash or stop PostgreSQL, or fill its disk.

use anyhow::{Context as _, Result};
use chrono::Utc;
use rand::Rng;
use remuda_testkit::PostgresServer;
use tokio::time::sleep;

use super::{Outcome, absence, millis};
use crate::cluster::Cluster;

pub(super) async fn restart(cluster: &Cluster, rng: &mut impl Rng) -> Result<Outcome> {
    let _lock = cluster.postgres.fault_lock.acquire().await.context("the lock of PostgreSQL is closed")?;
    let began = Utc::now();
    cluster.postgres.with(PostgresServer::crash).await?;
    let away = absence(rng);
    sleep(away).await;
    cluster.postgres.with(PostgresServer::restart).await?;
    Ok(Outcome::new("postgres", began, format!("stopped in immediate mode, away for {away:?}")))
}

pub(super) async fn pause(cluster: &Cluster) -> Result<Outcome> {
    let _lock = cluster.postgres.fault_lock.acquire().await.context("the lock of PostgreSQL is closed")?;
    let began = Utc::now();
    let time = cluster.options().postgres_pause;
    cluster.postgres.with(PostgresServer::pause).await?;
    sleep(time).await;
    cluster.postgres.with(PostgresServer::resume).await?;
    Ok(Outcome::new("postgres", began, format!("all processes stopped for {time:?}")))
}

pub(super) async fn fill(cluster: &Cluster, rng: &mut impl Rng) -> Result<Outcome> {
    let _lock = cluster.postgres.fault_lock.acquire().await.context("the lock of PostgreSQL is closed")?;
    let disk = cluster.disk.as_ref().context("the cluster was started without a small disk")?;
    let time = millis(rng, 3000..=7000);
    let began = Utc::now();
    disk.fill()?;
    sleep(time).await;
    disk.free()?;
    Ok(Outcome::new("postgres", began, format!("no room for {time:?}")))
}
