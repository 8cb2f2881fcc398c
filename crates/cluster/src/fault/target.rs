//! Chooses and reserves the target of a fault.

use std::time::Duration;

use anyhow::{Context, Result};
use rand::{Rng, seq::IndexedRandom as _};

use crate::{
    cluster::Cluster,
    member::{Member, MemberGuard},
    wait::wait_until,
};

/// How long to wait for a target that no other fault has reserved.
const TIMEOUT: Duration = Duration::from_secs(120);
/// How long to wait for a busy worker before an idle one is accepted.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);

/// Reserves a worker that executes tools, or any worker if none does.
pub(super) async fn busy_worker<'a>(cluster: &'a Cluster, rng: &mut impl Rng) -> Result<MemberGuard<'a>> {
    let busy = wait_until(BUSY_TIMEOUT, || {
        let busy: Vec<&Member> =
            cluster.workers().iter().filter(|worker| !worker.tools().is_empty()).collect();
        busy.choose(rng).and_then(|worker| worker.try_reserve())
    });
    match busy.await {
        Some(worker) => Ok(worker),
        None => any(cluster.workers(), rng).await,
    }
}

/// Reserves any member.
pub(super) async fn any<'a>(members: &'a [Member], rng: &mut impl Rng) -> Result<MemberGuard<'a>> {
    wait_until(TIMEOUT, || members.choose(rng).and_then(Member::try_reserve))
        .await
        .context("all processes of this kind are reserved by other faults")
}

/// Reserves the member with the highest `rank` that no other fault has reserved.
pub(super) async fn best<K: Ord>(members: &[Member], rank: impl Fn(&Member) -> K) -> Result<MemberGuard<'_>> {
    let choose = || {
        let mut ranked: Vec<(K, &Member)> = members.iter().map(|member| (rank(member), member)).collect();
        ranked.sort_by(|(one, _), (other, _)| other.cmp(one));
        ranked.into_iter().find_map(|(_, member)| member.try_reserve())
    };
    wait_until(TIMEOUT, choose).await.context("all processes of this kind are reserved by other faults")
}
