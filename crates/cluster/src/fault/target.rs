//! Choosing whom a fault hits.

use std::time::Duration;

use anyhow::{Context, Result};
use rand::{Rng, seq::IndexedRandom as _};

use crate::{
    cluster::Cluster,
    member::{Member, Taken},
    wait::wait_until,
};

/// How long to wait for a target that no other fault has.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long to wait for a target at the right moment, before any other moment will do.
const MOMENT_PATIENCE: Duration = Duration::from_secs(2);

/// A worker that executes tools, or any if none does.
pub(super) async fn busy_worker<'a>(cluster: &'a Cluster, rng: &mut impl Rng) -> Result<Taken<'a>> {
    let busy = wait_until(MOMENT_PATIENCE, || {
        let busy: Vec<&Member> =
            cluster.workers().iter().filter(|worker| !worker.tools().is_empty()).collect();
        busy.choose(rng).and_then(|worker| worker.take())
    });
    match busy.await {
        Some(worker) => Ok(worker),
        None => any(cluster.workers(), rng).await,
    }
}

/// Any member that no other fault has.
pub(super) async fn any<'a>(members: &'a [Member], rng: &mut impl Rng) -> Result<Taken<'a>> {
    wait_until(PATIENCE, || members.choose(rng).and_then(Member::take))
        .await
        .context("there is no process of this kind that no other fault has")
}

/// The first member in the order of `rank`, highest first, that no other fault has.
pub(super) async fn best<K: Ord>(members: &[Member], rank: impl Fn(&Member) -> K) -> Result<Taken<'_>> {
    let choose = || {
        let mut ranked: Vec<(K, &Member)> = members.iter().map(|member| (rank(member), member)).collect();
        ranked.sort_by(|(one, _), (other, _)| other.cmp(one));
        ranked.into_iter().find_map(|(_, member)| member.take())
    };
    wait_until(PATIENCE, choose).await.context("there is no process of this kind that no other fault has")
}
