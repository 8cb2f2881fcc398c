//! JetStream: tokens published, delivered and double-acked, each on its own subject.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context as _;
use async_nats::{
    Client,
    jetstream::{
        self, AckKind,
        consumer::{AckPolicy, PullConsumer, pull},
        stream::{self, DiscardPolicy, RetentionPolicy, StorageType},
    },
};
use futures::StreamExt as _;
use remuda_testkit::NatsServer;
use tokio::sync::Semaphore;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::CALLERS;

const STREAM: &str = "LIMITS";

pub(super) async fn measure(nats: PathBuf, time: Duration) -> anyhow::Result<f64> {
    let directory = tempfile::Builder::new().prefix("remuda-limits-").tempdir()?;
    let path = directory.path().to_owned();
    let server = tokio::task::spawn_blocking(move || NatsServer::start_in(&nats, &path)).await??;
    // One connection publishes and one consumes, like control plane and worker.
    let (publisher, taker) =
        (async_nats::connect(server.url()).await?, async_nats::connect(server.url()).await?);
    let consumer = consumer(&taker).await?;
    let (acked, stop, tasks) = (Arc::new(AtomicU64::new(0)), CancellationToken::new(), TaskTracker::new());
    let room = Arc::new(Semaphore::new(CALLERS));
    for caller in 0..CALLERS {
        tasks.spawn(publish(publisher.clone(), caller, Arc::clone(&room), stop.clone()));
    }
    tasks.spawn(take(consumer, taker, Arc::clone(&acked), room, stop.clone(), tasks.clone()));
    // Warm-up.
    tokio::time::sleep(time / 4).await;
    let (begun, before) = (Instant::now(), acked.load(Ordering::Relaxed));
    tokio::time::sleep(time).await;
    let rate = (acked.load(Ordering::Relaxed) - before) as f64 / begun.elapsed().as_secs_f64();
    stop.cancel();
    tasks.close();
    tasks.wait().await;
    Ok(rate)
}

async fn consumer(client: &Client) -> anyhow::Result<PullConsumer> {
    let stream = jetstream::new(client.clone())
        .create_stream(stream::Config {
            name: STREAM.to_owned(),
            subjects: vec!["limits.>".to_owned()],
            retention: RetentionPolicy::WorkQueue,
            storage: StorageType::File,
            max_messages_per_subject: 1,
            discard: DiscardPolicy::New,
            discard_new_per_subject: true,
            ..stream::Config::default()
        })
        .await?;
    let config = pull::Config {
        durable_name: Some("workers".to_owned()),
        ack_policy: AckPolicy::Explicit,
        max_ack_pending: 100_000,
        ..pull::Config::default()
    };
    stream.create_consumer(config).await.context("cannot create the consumer")
}

/// Publishes one token after the other while permits are available.
async fn publish(
    client: Client,
    caller: usize,
    room: Arc<Semaphore>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    for number in 0_u64.. {
        let permit = tokio::select! {
            () = stop.cancelled() => break,
            permit = room.acquire() => permit?,
        };
        // Returned with the ack.
        permit.forget();
        client.request(format!("limits.default.{caller}.{number}"), "".into()).await?;
    }
    Ok(())
}

async fn take(
    consumer: PullConsumer,
    client: Client,
    acked: Arc<AtomicU64>,
    room: Arc<Semaphore>,
    stop: CancellationToken,
    tasks: TaskTracker,
) -> anyhow::Result<()> {
    let mut messages = consumer.stream().max_messages_per_batch(CALLERS).messages().await?;
    loop {
        let message = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            message = messages.next() => message.context("the stream has ended")??,
        };
        let (client, acked, room) = (client.clone(), Arc::clone(&acked), Arc::clone(&room));
        tasks.spawn(async move {
            if let Some(reply) = &message.reply
                && client.request(reply.clone(), AckKind::Ack.into()).await.is_ok()
            {
                acked.fetch_add(1, Ordering::Relaxed);
            }
            room.add_permits(1);
        });
    }
}
