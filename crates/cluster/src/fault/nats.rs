//! Faults that stop NATS, with or without its store.

use anyhow::{Context as _, Result};
use chrono::Utc;
use rand::Rng;
use remuda_testkit::NatsServer;
use tokio::time::sleep;

use super::{Outcome, absence};
use crate::cluster::Cluster;

pub(super) async fn restart(cluster: &Cluster, rng: &mut impl Rng) -> Result<Outcome> {
    interrupt(cluster, rng, "stopped", NatsServer::stop).await
}

pub(super) async fn kill(cluster: &Cluster, rng: &mut impl Rng) -> Result<Outcome> {
    interrupt(cluster, rng, "killed", NatsServer::kill).await
}

pub(super) async fn wipe(cluster: &Cluster, rng: &mut impl Rng) -> Result<Outcome> {
    interrupt(cluster, rng, "killed and wiped", NatsServer::wipe).await
}

async fn interrupt(
    cluster: &Cluster,
    rng: &mut impl Rng,
    what: &str,
    end: fn(&mut NatsServer) -> Result<()>,
) -> Result<Outcome> {
    let _lock = cluster.nats.fault_lock.acquire().await.context("the lock of NATS is closed")?;
    let began = Utc::now();
    cluster.nats.with(end).await?;
    let away = absence(rng);
    sleep(away).await;
    cluster.nats.with(NatsServer::restart).await?;
    Ok(Outcome::new("nats", began, format!("{what}, away for {away:?}")))
}
