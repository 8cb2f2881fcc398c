//! The fault `nats-settings`: changed settings of the token stream, or a deleted consumer.

use std::time::Duration;

use anyhow::{Context as _, Result};
use async_nats::jetstream::{
    self,
    stream::{Config, DiscardPolicy},
};
use chrono::Utc;
use rand::{Rng, seq::IndexedRandom as _};
use tokio::time::{Instant, sleep, timeout};

use super::Outcome;
use crate::cluster::Cluster;

const STREAM: &str = "REMUDA_TOKENS";
const CONSUMER: &str = "pool-default";
/// Attempts to delete the consumer.
const DELETE_TRIES: usize = 20;
/// How long the system may take for the repair: a worker notices a missing consumer with its next request, which waits for at
/// most half a minute; the reconciler repairs the rest.
const REPAIR_TIMEOUT: Duration = Duration::from_secs(40);
const PAUSE: Duration = Duration::from_millis(200);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// What is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// Deletes the consumer, which the system must recreate.
    DeleteConsumer,
    /// A second token of a session replaces the first, which may be in delivery.
    DiscardOld,
    /// A session may have many tokens.
    ManyTokens,
}

const CHANGES: [Change; 3] = [Change::DeleteConsumer, Change::DiscardOld, Change::ManyTokens];

pub(super) async fn change(cluster: &Cluster, rng: &mut impl Rng) -> Result<Outcome> {
    let change = *CHANGES.choose(rng).context("no change to choose from")?;
    let _lock = cluster.nats.fault_lock.acquire().await.context("the lock of NATS is closed")?;
    let client = timeout(REQUEST_TIMEOUT, cluster.nats_client()).await??;
    let context = jetstream::new(client);
    match change {
        Change::DeleteConsumer => delete_consumer(&context).await,
        Change::DiscardOld | Change::ManyTokens => misconfigure(&context, change).await,
    }
}

async fn delete_consumer(context: &jetstream::Context) -> Result<Outcome> {
    let stream = context.get_stream(STREAM).await.context("cannot find the token stream")?;
    let before = stream.consumer_info(CONSUMER).await.context("cannot find the consumer")?.created;
    let began = Utc::now();
    // NATS 2.9 can fail with "directory not empty" while it writes to the consumer's files, and then deletes nothing.
    let mut deleted = stream.delete_consumer(CONSUMER).await;
    for _ in 1..DELETE_TRIES {
        if deleted.is_ok() {
            break;
        }
        sleep(PAUSE).await;
        deleted = stream.delete_consumer(CONSUMER).await;
    }
    deleted.context("cannot delete the consumer")?;
    let begun = Instant::now();
    let repaired = timeout(REPAIR_TIMEOUT, async {
        while !stream.consumer_info(CONSUMER).await.is_ok_and(|info| info.created > before) {
            sleep(PAUSE).await;
        }
    });
    let repaired = repaired.await.is_ok();
    let took = begun.elapsed();
    let mut outcome =
        Outcome::new("nats", began, format!("deleted consumer {CONSUMER}, recreated after {took:.1?}"));
    if !repaired {
        outcome.note = format!("deleted consumer {CONSUMER}");
        outcome.problems.push(format!("consumer {CONSUMER} was not recreated within {REPAIR_TIMEOUT:?}"));
    }
    Ok(outcome)
}

/// Changes the settings of the stream, which the system must notice and repair.
async fn misconfigure(context: &jetstream::Context, change: Change) -> Result<Outcome> {
    let right = context
        .get_stream(STREAM)
        .await
        .context("cannot find the token stream")?
        .cached_info()
        .config
        .clone();
    let wrong = misconfigured(right.clone(), change);
    let began = Utc::now();
    context.update_stream(&wrong).await.context("cannot change the token stream")?;
    let begun = Instant::now();
    let is_right = |live: &Config| {
        (live.max_messages_per_subject, live.discard, live.discard_new_per_subject)
            == (right.max_messages_per_subject, right.discard, right.discard_new_per_subject)
    };
    let repaired = timeout(REPAIR_TIMEOUT, async {
        while !context.get_stream(STREAM).await.is_ok_and(|stream| is_right(&stream.cached_info().config)) {
            sleep(PAUSE).await;
        }
    });
    let repaired = repaired.await.is_ok();
    let what = match change {
        Change::ManyTokens => "max_msgs_per_subject = -1",
        Change::DiscardOld | Change::DeleteConsumer => "discard = old",
    };
    let took = begun.elapsed();
    let mut outcome =
        Outcome::new("nats", began, format!("set {what} of {STREAM}, repaired after {took:.1?}"));
    if !repaired {
        outcome.note = format!("set {what} of {STREAM}");
        outcome.problems.push(format!("{STREAM} was not repaired within {REPAIR_TIMEOUT:?}"));
        context.update_stream(&right).await.context("cannot restore the token stream")?;
    }
    Ok(outcome)
}

fn misconfigured(config: Config, change: Change) -> Config {
    match change {
        Change::DeleteConsumer => config,
        Change::DiscardOld => {
            Config { discard: DiscardPolicy::Old, discard_new_per_subject: false, ..config }
        }
        // The server accepts this only without `discard_new_per_subject`.
        Change::ManyTokens => {
            Config { max_messages_per_subject: -1, discard_new_per_subject: false, ..config }
        }
    }
}
