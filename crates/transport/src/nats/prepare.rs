//! Creating the stream and its consumers, checking live ones, and reporting on them.

use async_nats::jetstream::{
    consumer,
    context::{ConsumerInfoErrorKind, GetStreamErrorKind},
    stream::{Info, Stream},
};
use futures::TryStreamExt;
use remuda_domain::{
    Pool,
    error::{Code, Error, Result},
};
use tokio::time::timeout;

use super::{Nats, Shared, settings, unavailable};
use crate::traits::TokenCounts;

/// What `remuda doctor` shows of NATS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NatsReport {
    /// The version of the server we are connected to.
    pub version: String,
    /// The name of the token stream.
    pub stream: String,
    /// What is missing or differs from the wanted settings; empty when all is well.
    pub problems: Vec<String>,
    pub consumers: Vec<ConsumerReport>,
    /// Tokens in the stream.
    pub messages: u64,
    /// Tokens waiting for a worker, of all pools.
    pub pending: u64,
    /// Tokens in the stream that no consumer will deliver, as a crash of an old server leaves them. A few may show for a
    /// moment under load, as the numbers are not taken at one instant; tokens of pools without a consumer count too.
    pub orphans: u64,
}

/// One pool's consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerReport {
    pub name: String,
    /// Tokens waiting for a worker.
    pub pending: u64,
    /// Tokens in workers' hands.
    pub taken: u64,
    /// Requests of workers waiting for tokens.
    pub waiting_pulls: u64,
}

impl Nats {
    /// Creates the token stream and a consumer for every pool, where they are missing, and puts settings right that
    /// someone changed: a stream that discards old messages would drop work. Says what it put right. What cannot be is an
    /// error that names each difference.
    pub async fn prepare(&self, pools: &[Pool]) -> Result<Vec<String>> {
        let (stream, mut mended) = self.shared.prepare_stream().await?;
        for pool in pools {
            mended.extend(self.shared.prepare_consumer(&stream, pool).await?);
        }
        Ok(mended)
    }

    /// The same for the stream and the consumers that are there.
    pub(super) async fn mend(&self) -> Result<Vec<String>> {
        let shared = &self.shared;
        let (stream, mut mended) = shared.prepare_stream().await?;
        let names: Vec<String> =
            shared.control.bounded("list consumers", stream.consumer_names().try_collect()).await?;
        for pool in names.iter().filter_map(|name| pool_of(name)) {
            mended.extend(shared.prepare_consumer(&stream, &pool).await?);
        }
        Ok(mended)
    }

    /// Looks at the server without changing anything.
    pub async fn inspect(&self) -> Result<NatsReport> {
        let shared = &self.shared;
        let mut report = NatsReport {
            version: shared.control.version(),
            stream: shared.names.stream(),
            ..NatsReport::default()
        };
        let Some(stream) = shared.find_stream().await? else {
            report.problems.push(format!("stream {} does not exist", report.stream));
            return Ok(report);
        };
        let wanted = settings::stream(&shared.names, &shared.options);
        report.problems = settings::stream_differences(&stream.cached_info().config, &wanted);
        let consumers: Vec<consumer::Info> =
            shared.control.bounded("list consumers", stream.consumers().try_collect()).await?;
        let mut taken = 0;
        for info in consumers {
            report.problems.extend(shared.consumer_problems(&info));
            report.pending += info.num_pending;
            taken += info.num_ack_pending as u64;
            report.consumers.push(ConsumerReport {
                name: info.name,
                pending: info.num_pending,
                taken: info.num_ack_pending as u64,
                waiting_pulls: info.num_waiting as u64,
            });
        }
        let info = shared.control.bounded("stream info", stream.get_info()).await?;
        report.messages = info.state.messages;
        report.orphans = report.messages.saturating_sub(report.pending + taken);
        Ok(report)
    }
}

impl Shared {
    /// Makes sure that the pool's tokens have a stream and a consumer, as after the server was wiped.
    pub(super) async fn repair(&self, pool: &Pool) -> Result<()> {
        let limit = self.options.request_timeout.saturating_mul(2);
        let repair = async {
            let _one_at_a_time = self.repair.acquire().await.map_err(|error| unavailable("repair", error))?;
            let (stream, _) = self.prepare_stream().await?;
            self.prepare_consumer(&stream, pool).await?;
            Ok(())
        };
        timeout(limit, repair).await.map_err(|_| Error::unavailable("NATS: repair: timed out"))?
    }

    /// Removes the pool's consumer, for [`repair`](Self::repair) to make it anew. Tokens stay; those in workers' hands are given
    /// out once more, which the store's ownership makes harmless.
    pub(super) async fn remove_consumer(&self, pool: &Pool) -> Result<()> {
        let name = self.names.consumer(pool);
        tracing::warn!(consumer = name, "making the consumer of a pool anew");
        let stream = self.jetstream.get_stream_no_info(self.names.stream());
        let stream = self.control.bounded("stream", stream).await?;
        // Another worker may have been quicker.
        match timeout(self.options.request_timeout, stream.delete_consumer(&name)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => {
                tracing::debug!(%error, "the consumer was not removed");
                Ok(())
            }
            Err(_) => Err(Error::unavailable("NATS: remove consumer: timed out")),
        }
    }

    pub(super) async fn token_counts(&self, pool: &Pool) -> Result<TokenCounts> {
        let name = self.names.consumer(pool);
        let stream = self.jetstream.get_stream_no_info(self.names.stream());
        let stream = self.control.bounded("stream", stream).await?;
        let info = match timeout(self.options.request_timeout, stream.consumer_info(&name)).await {
            Ok(Ok(info)) => info,
            // Wiped: nothing is there, and nothing waits.
            Ok(Err(error)) if is_missing(&error.kind()) => return Ok(TokenCounts::default()),
            Ok(Err(error)) => return Err(unavailable("consumer info", error)),
            Err(_) => return Err(Error::unavailable("NATS: consumer info: timed out")),
        };
        Ok(TokenCounts { waiting: info.num_pending, taken: info.num_ack_pending as u64 })
    }

    async fn find_stream(&self) -> Result<Option<Stream<Info>>> {
        self.control.check_connected()?;
        match timeout(self.options.request_timeout, self.jetstream.get_stream(self.names.stream())).await {
            Ok(Ok(stream)) => Ok(Some(stream)),
            Ok(Err(error)) => match error.kind() {
                GetStreamErrorKind::JetStream(reason) if reason.code() == 404 => Ok(None),
                _ => Err(unavailable("stream info", error)),
            },
            Err(_) => Err(Error::unavailable("NATS: stream info: timed out")),
        }
    }

    async fn prepare_stream(&self) -> Result<(Stream<Info>, Vec<String>)> {
        let wanted = settings::stream(&self.names, &self.options);
        let Some(stream) = self.find_stream().await? else {
            tracing::info!(stream = wanted.name, "creating the token stream");
            let created = self.jetstream.create_stream(wanted.clone());
            let stream = self.control.bounded("create stream", created).await?;
            let differences = settings::stream_differences(&stream.cached_info().config, &wanted);
            refuse(&format!("stream {}", wanted.name), &differences)?;
            return Ok((stream, Vec::new()));
        };
        let live = &stream.cached_info().config;
        let differences = settings::stream_differences(live, &wanted);
        if differences.is_empty() {
            return Ok((stream, differences));
        }
        let what = format!("stream {}", wanted.name);
        let repaired = self.jetstream.update_stream(settings::repaired(live, &wanted));
        // Some settings cannot be changed, and the server says so: then the old differences stand.
        let left = match timeout(self.options.request_timeout, repaired).await {
            Ok(Ok(info)) => settings::stream_differences(&info.config, &wanted),
            Ok(Err(error)) => {
                tracing::debug!(%error, "the settings of the token stream cannot be changed");
                differences.clone()
            }
            Err(_) => return Err(Error::unavailable("NATS: update stream: timed out")),
        };
        refuse(&what, &left)?;
        Ok((stream, mended(&what, &differences)))
    }

    async fn prepare_consumer(&self, stream: &Stream<Info>, pool: &Pool) -> Result<Vec<String>> {
        let wanted = settings::consumer(&self.names, pool, &self.options);
        let name = self.names.consumer(pool);
        let live = match timeout(self.options.request_timeout, stream.consumer_info(&name)).await {
            Ok(Ok(info)) => Some(info.config),
            Ok(Err(error)) if is_missing(&error.kind()) => None,
            Ok(Err(error)) => return Err(unavailable("consumer info", error)),
            Err(_) => return Err(Error::unavailable("NATS: consumer info: timed out")),
        };
        let differences = match &live {
            Some(live) => settings::consumer_differences(live, &wanted),
            None => Vec::new(),
        };
        if live.is_some() && differences.is_empty() {
            return Ok(differences);
        }
        if live.is_some() {
            // Not every setting can be changed in place, and a consumer holds nothing that is worth keeping.
            self.remove_consumer(pool).await?;
        } else {
            tracing::info!(consumer = name, "creating the consumer of a pool");
        }
        let created = self.control.bounded("create consumer", stream.create_consumer(wanted.clone())).await?;
        let what = format!("consumer {name}");
        refuse(&what, &settings::consumer_differences(&created.cached_info().config, &wanted))?;
        Ok(mended(&what, &differences))
    }

    /// What is wrong with a live consumer.
    fn consumer_problems(&self, info: &consumer::Info) -> Vec<String> {
        let Some(pool) = pool_of(&info.name) else {
            return vec![format!("consumer {} is not one of ours", info.name)];
        };
        let wanted = settings::consumer(&self.names, &pool, &self.options);
        let named = |difference| format!("consumer {}: {difference}", info.name);
        settings::consumer_differences(&info.config, &wanted).into_iter().map(named).collect()
    }
}

fn is_missing(kind: &ConsumerInfoErrorKind) -> bool {
    matches!(kind, ConsumerInfoErrorKind::NotFound | ConsumerInfoErrorKind::StreamNotFound)
}

/// The pool whose consumer has this name, if it is one of ours.
fn pool_of(consumer: &str) -> Option<Pool> {
    consumer.strip_prefix("pool-")?.parse().ok()
}

/// Reports differences that are no more.
fn mended(what: &str, differences: &[String]) -> Vec<String> {
    let named: Vec<String> = differences.iter().map(|difference| format!("{what}: {difference}")).collect();
    if !named.is_empty() {
        tracing::warn!(settings = named.join("; "), "put NATS settings right that someone had changed");
    }
    named
}

/// Not a passing fault: someone has to change the settings, or remove what is there and let it be created anew.
fn refuse(what: &str, differences: &[String]) -> Result<()> {
    if differences.is_empty() {
        return Ok(());
    }
    Err(Error::new(Code::Internal, format!("NATS {what} has unfit settings: {}", differences.join("; "))))
}
