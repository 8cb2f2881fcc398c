//! The part `replicas`: two stream services are killed in turn, and readers resume at the other one.

use std::time::Duration;

use anyhow::Context as _;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use remuda_cluster::{Cluster, FaultKind};
use serde_json::json;
use tokio::time::sleep;

use super::{
    FanoutArgs,
    event_load::{EventLoad, EventLoadPlan},
    reader_group::ReaderGroup,
    report::PartReport,
};
use crate::deployment::Deployment;

pub(super) const REPLICAS: usize = 2;
/// Events per second in all sessions.
const EVENTS: f64 = 200.0;
/// Time between the restart of one replica and the kill of the next.
const PAUSE: std::ops::Range<Duration> = Duration::from_millis(500)..Duration::from_secs(3);

/// Needs a cluster: the embedded mode has only one stream service.
pub(super) async fn run(args: &FanoutArgs, deployment: &mut Deployment) -> anyhow::Result<Vec<PartReport>> {
    let mut group = ReaderGroup::new(deployment, "replicas", args.replica_sessions).await?;
    group.start_many(args.replica_readers);
    group.wait_until_connected().await?;
    let plan = EventLoadPlan {
        failover: group.failover.clone(),
        sessions: group.sessions.clone(),
        events: EVENTS.min(args.rate),
        first_share: 0.0,
        seed: args.seed,
    };
    let load = EventLoad::start(plan).await?;
    let cluster = deployment.cluster().context("no cluster")?;
    let (killed, problems) = kill_in_turn(cluster, args).await?;
    let counts = load.stop().await?;
    let results = group.finish().await?;

    let mut part = PartReport::new("replicas", &results, [deployment.problems(), problems].concat());
    let (readers, sessions) = (args.replica_readers, args.replica_sessions);
    part.add("readers", json!(readers), "readers", format!("{readers} of {sessions} sessions"));
    part.add("kills", json!(killed.len()), "killed", killed.join(", "));
    let connections = results.connections;
    part.add("connections", json!(connections), "connections", connections.to_string());
    let (runs, deliveries) = (counts.accepted(), results.deliveries());
    part.add("runs", json!(runs), "runs", runs.to_string());
    part.add("deliveries", json!(deliveries), "deliveries", deliveries.to_string());
    Ok(vec![part])
}

/// Kills the replica with the most readers each time: the one they moved to after the last kill.
async fn kill_in_turn(cluster: &Cluster, args: &FanoutArgs) -> anyhow::Result<(Vec<String>, Vec<String>)> {
    let mut rng = StdRng::seed_from_u64(args.seed);
    let (mut killed, mut problems) = (Vec::new(), Vec::new());
    for _ in 0..args.kills {
        sleep(rng.random_range(PAUSE)).await;
        let record = FaultKind::StreamKill.inject(cluster, &mut rng).await?;
        killed.push(record.target);
        problems.extend(record.problems);
    }
    sleep(PAUSE.start).await;
    Ok((killed, problems))
}
