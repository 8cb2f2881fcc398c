//! Network faults: links of workers that are cut or slow.

use std::time::Duration;

use anyhow::Result;
use chrono::Utc;
use rand::Rng;
use remuda_testkit::{Link, TcpProxy};
use tokio::time::sleep;

use super::{Outcome, millis, target};
use crate::{cluster::Cluster, member::Member};

pub(super) async fn cut_nats(cluster: &Cluster, rng: &mut impl Rng) -> Result<Outcome> {
    cut(cluster, rng, |worker| &worker.nats).await
}

pub(super) async fn cut_postgres(cluster: &Cluster, rng: &mut impl Rng) -> Result<Outcome> {
    cut(cluster, rng, |worker| &worker.postgres).await
}

async fn cut(cluster: &Cluster, rng: &mut impl Rng, link: fn(&Member) -> &TcpProxy) -> Result<Outcome> {
    let worker = target::busy_worker(cluster, rng).await?;
    let began = Utc::now();
    // A silent link delivers late everything that was sent meanwhile; a reset link loses it.
    let how = if rng.random_bool(0.5) { Link::Silent } else { Link::Reset };
    let time = around_the_lease(cluster.options().lease, rng);
    link(&worker).set_link(how);
    sleep(time).await;
    link(&worker).heal();
    let how = if how == Link::Silent { "silent" } else { "reset" };
    Ok(Outcome::new(worker.name(), began, format!("link {how} for {time:.1?}")))
}

/// With equal probability shorter than the lease, so that the worker keeps its sessions, or longer, so that it loses them.
fn around_the_lease(lease: Duration, rng: &mut impl Rng) -> Duration {
    let range = if rng.random_bool(0.5) { 0.2..0.7 } else { 1.2..2.0 };
    lease.mul_f64(rng.random_range(range))
}

pub(super) async fn slow(cluster: &Cluster, rng: &mut impl Rng) -> Result<Outcome> {
    let worker = target::any(cluster.workers(), rng).await?;
    let began = Utc::now();
    let (latency, time) = (millis(rng, 50..=200), millis(rng, 3000..=6000));
    let links = [&worker.postgres, &worker.nats];
    links.iter().for_each(|link| link.set_latency(latency));
    sleep(time).await;
    links.iter().for_each(|link| link.heal());
    Ok(Outcome::new(worker.name(), began, format!("{latency:?} of latency each way for {time:.1?}")))
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng as _, rngs::StdRng};

    use super::*;

    #[test]
    fn cuts_are_shorter_and_longer_than_the_lease() {
        let lease = Duration::from_secs(3);
        let mut rng = StdRng::seed_from_u64(1);
        let times: Vec<Duration> = (0..100).map(|_| around_the_lease(lease, &mut rng)).collect();
        let longer = times.iter().filter(|time| **time > lease).count();
        assert!((20..80).contains(&longer), "{longer} of 100 are longer");
        assert!(times.iter().all(|time| *time < lease * 2));
    }
}
