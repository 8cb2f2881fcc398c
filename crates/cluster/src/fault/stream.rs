//! The fault `stream-kill`: a stream service is killed under its readers.

use anyhow::Result;
use chrono::Utc;
use rand::Rng;
use tokio::time::sleep;

use super::{Outcome, absence, target};
use crate::{cluster::Cluster, connections::clients_of, member::Member};

pub(super) async fn kill(cluster: &Cluster, rng: &mut impl Rng) -> Result<Outcome> {
    let connections = |stream: &Member| stream.address().map_or(0, |address| clients_of(address.port()));
    let stream = target::best(cluster.streams(), connections).await?;
    let readers = connections(&stream);
    let began = Utc::now();
    stream.kill().await?;
    let away = absence(rng);
    sleep(away).await;
    stream.start().await?;
    Ok(Outcome::new(stream.name(), began, format!("killed with {readers} connections, away for {away:?}")))
}
