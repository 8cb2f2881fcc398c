//! NATS goes away, with or without its memory.

use anyhow::{Context as _, Result};
use chrono::Utc;
use rand::Rng;
use remuda_testkit::NatsServer;
use tokio::time::sleep;

use super::{Outcome, absence};
use crate::cluster::Cluster;

pub(super) async fn restart(cluster: &Cluster, rng: &mut impl Rng) -> Result<Outcome> {
    go_away(cluster, rng, "stopped", NatsServer::stop).await
}

pub(super) async fn kill(cluster: &Cluster, rng: &mut impl Rng) -> Result<Outcome> {
    go_away(cluster, rng, "killed", NatsServer::kill).await
}

pub(super) async fn wipe(cluster: &Cluster, rng: &mut impl Rng) -> Result<Outcome> {
    go_away(cluster, rng, "killed and wiped", NatsServer::wipe).await
}

async fn go_away(
    cluster: &Cluster,
    rng: &mut impl Rng,
    what: &str,
    end: fn(&mut NatsServer) -> Result<()>,
) -> Result<Outcome> {
    let _turn = cluster.nats.turn.acquire().await.context("NATS is gone")?;
    let began = Utc::now();
    cluster.nats.with(end).await?;
    let away = absence(rng);
    sleep(away).await;
    cluster.nats.with(NatsServer::restart).await?;
    Ok(Outcome::of("nats", began, format!("{what}, away for {away:?}")))
}
