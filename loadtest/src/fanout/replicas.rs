//! Two stream services that are killed in turn under their readers, who go on at the other one.

use std::time::Duration;

use anyhow::Context as _;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use remuda_cluster::{Cluster, FaultKind};
use serde_json::json;
use tokio::time::sleep;

use super::{
    FanoutArgs,
    audience::Audience,
    load::{Load, Plan},
    report::Part,
};
use crate::stage::Stage;

pub(super) const REPLICAS: usize = 2;
/// Events per second in all sessions.
const EVENTS: f64 = 200.0;
/// Between the start of one replica and the death of the next.
const PEACE: std::ops::Range<Duration> = Duration::from_millis(500)..Duration::from_secs(3);

/// Needs a cluster: the embedded mode has one of everything.
pub(super) async fn run(args: &FanoutArgs, stage: &mut Stage) -> anyhow::Result<Vec<Part>> {
    let mut audience = Audience::new(stage, "replicas", args.replica_sessions).await?;
    audience.seat_many(args.replica_readers);
    audience.all_in().await?;
    let plan = Plan {
        fleet: audience.fleet.clone(),
        sessions: audience.sessions.clone(),
        events: EVENTS.min(args.rate),
        first_share: 0.0,
        seed: args.seed,
    };
    let load = Load::start(plan).await?;
    let cluster = stage.cluster().context("there is no cluster")?;
    let (killed, problems) = kill_in_turn(cluster, args).await?;
    let counts = load.stop().await?;
    let findings = audience.finish().await?;

    let mut part = Part::new("replicas", &findings, [stage.troubles(), problems].concat());
    let (readers, sessions) = (args.replica_readers, args.replica_sessions);
    part.tell("readers", json!(readers), "readers", format!("{readers} of {sessions} sessions"));
    part.tell("kills", json!(killed.len()), "killed", killed.join(", "));
    let connections = findings.connections;
    part.tell("connections", json!(connections), "connections", connections.to_string());
    let (runs, deliveries) = (counts.accepted(), findings.deliveries());
    part.tell("runs", json!(runs), "runs meanwhile", runs.to_string());
    part.tell("deliveries", json!(deliveries), "deliveries", deliveries.to_string());
    Ok(vec![part])
}

/// Each time the one with the most readers, which is the one that they fled to the last time.
async fn kill_in_turn(cluster: &Cluster, args: &FanoutArgs) -> anyhow::Result<(Vec<String>, Vec<String>)> {
    let mut rng = StdRng::seed_from_u64(args.seed);
    let (mut killed, mut problems) = (Vec::new(), Vec::new());
    for _ in 0..args.kills {
        sleep(rng.random_range(PEACE)).await;
        let record = FaultKind::StreamKill.inject(cluster, &mut rng).await?;
        killed.push(record.target);
        problems.extend(record.problems);
    }
    sleep(PEACE.start).await;
    Ok((killed, problems))
}
