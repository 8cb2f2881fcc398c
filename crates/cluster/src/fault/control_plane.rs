//! Control planes that die at the worst moment.

use anyhow::Result;
use chrono::Utc;
use rand::Rng;
use remuda_testkit::Link;
use tokio::time::sleep;

use super::{Outcome, absence, millis, target};
use crate::cluster::Cluster;

/// First only NATS is out of reach: runs are committed, and nobody is woken for them. Then the process that knows is killed.
pub(super) async fn kill(cluster: &Cluster, rng: &mut impl Rng) -> Result<Outcome> {
    let control_plane = target::any(cluster.control_planes(), rng).await?;
    let began = Utc::now();
    let cut = millis(rng, 300..=1500);
    control_plane.nats.set_link(Link::Silent);
    sleep(cut).await;
    let killed = control_plane.kill().await;
    // What it had sent must not arrive after all.
    control_plane.nats.set_link(Link::Reset);
    let away = absence(rng);
    sleep(away).await;
    control_plane.nats.heal();
    killed?;
    control_plane.start().await?;
    Ok(Outcome::of(
        control_plane.name(),
        began,
        format!("killed after {cut:?} without NATS, away for {away:?}"),
    ))
}
