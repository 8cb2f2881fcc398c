//! The fault `control-plane-kill`: a control plane is killed between commit and publish.

use anyhow::Result;
use chrono::Utc;
use rand::Rng;
use remuda_testkit::Link;
use tokio::time::sleep;

use super::{Outcome, absence, millis, target};
use crate::cluster::Cluster;

/// First only NATS is unreachable: runs are committed, but their tokens are not published. Then the process is killed.
pub(super) async fn kill(cluster: &Cluster, rng: &mut impl Rng) -> Result<Outcome> {
    let control_plane = target::any(cluster.control_planes(), rng).await?;
    let began = Utc::now();
    let cut = millis(rng, 300..=1500);
    control_plane.nats.set_link(Link::Silent);
    sleep(cut).await;
    let killed = control_plane.kill().await;
    // Discard what it had sent: it must not arrive later.
    control_plane.nats.set_link(Link::Reset);
    let away = absence(rng);
    sleep(away).await;
    control_plane.nats.heal();
    killed?;
    control_plane.start().await?;
    Ok(Outcome::new(
        control_plane.name(),
        began,
        format!("killed after {cut:?} without NATS, away for {away:?}"),
    ))
}
