//! Creates the token stream and its consumers, repairs their settings, and reports on them.

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

use super::{Nats, Shared, stream_settings, unavailable};
use crate::traits::TokenCounts;

/// State of NATS as shown by `remuda doctor`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NatsReport {
    /// Version of the connected server.
    pub version: String,
    /// The name of the token stream.
    pub stream: String,
    /// What is missing or differs from the expected settings. Empty if all is well.
    pub problems: Vec<String>,
    pub consumers: Vec<ConsumerReport>,
    /// Tokens in the stream.
    pub messages: u64,
    /// Tokens waiting for a worker, in all pools.
    pub pending: u64,
    /// Tokens in the stream that no consumer will deliver, as left behind by a crash of an old server. A few may show
    /// for a moment under load, because the counts are not read atomically. Tokens of pools without a consumer count
    /// too.
    pub orphans: u64,
}

/// One pool's consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerReport {
    pub name: String,
    /// Tokens waiting for a worker.
    pub pending: u64,
    /// Tokens held by workers.
    pub taken: u64,
    /// Open pull requests of workers.
    pub waiting_pulls: u64,
}

impl Nats {
    /// Creates the token stream, if this client [manages](super::NatsOptions::manages_stream) it, and a consumer for every pool if missing, and repairs changed settings: a stream that
    /// discards old messages would drop work. Returns the differences that were repaired. Differences that cannot be
    /// repaired are an error that lists each of them.
    pub async fn provision(&self, pools: &[Pool]) -> Result<Vec<String>> {
        let (stream, mut repaired) = self.shared.prepare_stream().await?;
        for pool in pools {
            repaired.extend(self.shared.prepare_consumer(&stream, pool).await?);
        }
        Ok(repaired)
    }

    /// Repairs the stream and its existing consumers.
    pub(super) async fn repair(&self) -> Result<Vec<String>> {
        let shared = &self.shared;
        let (stream, mut repaired) = shared.prepare_stream().await?;
        let subjects: Vec<String> =
            shared.control.bounded("list consumers", stream.consumer_names().try_collect()).await?;
        for pool in subjects.iter().filter_map(|name| pool_of(name)) {
            repaired.extend(shared.prepare_consumer(&stream, &pool).await?);
        }
        Ok(repaired)
    }

    /// Reads the state of the server without changing anything.
    pub async fn inspect(&self) -> Result<NatsReport> {
        let shared = &self.shared;
        let mut report = NatsReport {
            version: shared.control.version(),
            stream: shared.subjects.stream(),
            ..NatsReport::default()
        };
        let Some(stream) = shared.find_stream().await? else {
            report.problems.push(format!("stream {} does not exist", report.stream));
            return Ok(report);
        };
        let expected = stream_settings::stream(&shared.subjects, &shared.options);
        report.problems = stream_settings::stream_differences(&stream.cached_info().config, &expected);
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
    /// Creates the stream and the pool's consumer again, for example after the server was wiped.
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

    /// Removes the pool's consumer, for [`repair`](Self::repair) to create it again. Tokens stay. Those held by
    /// workers are delivered once more, which session ownership in the store makes harmless.
    pub(super) async fn remove_consumer(&self, pool: &Pool) -> Result<()> {
        let name = self.subjects.consumer(pool);
        tracing::warn!(consumer = name, "recreating the consumer of a pool");
        let stream = self.jetstream.get_stream_no_info(self.subjects.stream());
        let stream = self.control.bounded("stream", stream).await?;
        // Another worker may have removed it already.
        match timeout(self.options.request_timeout, stream.delete_consumer(&name)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => {
                tracing::debug!(%error, "consumer was not removed");
                Ok(())
            }
            Err(_) => Err(Error::unavailable("NATS: remove consumer: timed out")),
        }
    }

    pub(super) async fn token_counts(&self, pool: &Pool) -> Result<TokenCounts> {
        let name = self.subjects.consumer(pool);
        let stream = self.jetstream.get_stream_no_info(self.subjects.stream());
        let stream = self.control.bounded("stream", stream).await?;
        let info = match timeout(self.options.request_timeout, stream.consumer_info(&name)).await {
            Ok(Ok(info)) => info,
            // The server was wiped: no token is waiting.
            Ok(Err(error)) if is_missing(&error.kind()) => return Ok(TokenCounts::default()),
            Ok(Err(error)) => return Err(unavailable("consumer info", error)),
            Err(_) => return Err(Error::unavailable("NATS: consumer info: timed out")),
        };
        Ok(TokenCounts { waiting: info.num_pending, taken: info.num_ack_pending as u64 })
    }

    async fn find_stream(&self) -> Result<Option<Stream<Info>>> {
        self.control.check_connected()?;
        match timeout(self.options.request_timeout, self.jetstream.get_stream(self.subjects.stream())).await {
            Ok(Ok(stream)) => Ok(Some(stream)),
            Ok(Err(error)) => match error.kind() {
                GetStreamErrorKind::JetStream(reason) if reason.code() == 404 => Ok(None),
                _ => Err(unavailable("stream info", error)),
            },
            Err(_) => Err(Error::unavailable("NATS: stream info: timed out")),
        }
    }

    async fn prepare_stream(&self) -> Result<(Stream<Info>, Vec<String>)> {
        let expected = stream_settings::stream(&self.subjects, &self.options);
        let found = self.find_stream().await?;
        if !self.options.manages_stream {
            let missing = || {
                Error::unavailable(format!(
                    "NATS: stream {} does not exist: a control plane creates it",
                    expected.name
                ))
            };
            return Ok((found.ok_or_else(missing)?, Vec::new()));
        }
        let Some(stream) = found else {
            tracing::info!(stream = expected.name, "creating the token stream");
            let created = self.jetstream.create_stream(expected.clone());
            let stream = self.control.bounded("create stream", created).await?;
            let differences = stream_settings::stream_differences(&stream.cached_info().config, &expected);
            reject_differences(&format!("stream {}", expected.name), &differences)?;
            return Ok((stream, Vec::new()));
        };
        let actual = &stream.cached_info().config;
        let differences = stream_settings::stream_differences(actual, &expected);
        if differences.is_empty() {
            return Ok((stream, differences));
        }
        let what = format!("stream {}", expected.name);
        let repaired = self.jetstream.update_stream(stream_settings::repaired_stream(actual, &expected));
        // Some settings cannot be changed, and the server says so. Then the old differences remain.
        let remaining = match timeout(self.options.request_timeout, repaired).await {
            Ok(Ok(info)) => stream_settings::stream_differences(&info.config, &expected),
            Ok(Err(error)) => {
                tracing::debug!(%error, "cannot change the settings of the token stream");
                differences.clone()
            }
            Err(_) => return Err(Error::unavailable("NATS: update stream: timed out")),
        };
        reject_differences(&what, &remaining)?;
        Ok((stream, report_repairs(&what, &differences)))
    }

    async fn prepare_consumer(&self, stream: &Stream<Info>, pool: &Pool) -> Result<Vec<String>> {
        let expected = stream_settings::consumer(&self.subjects, pool, &self.options);
        let name = self.subjects.consumer(pool);
        let actual = match timeout(self.options.request_timeout, stream.consumer_info(&name)).await {
            Ok(Ok(info)) => Some(info.config),
            Ok(Err(error)) if is_missing(&error.kind()) => None,
            Ok(Err(error)) => return Err(unavailable("consumer info", error)),
            Err(_) => return Err(Error::unavailable("NATS: consumer info: timed out")),
        };
        let differences = match &actual {
            Some(actual) => stream_settings::consumer_differences(actual, &expected),
            None => Vec::new(),
        };
        if actual.is_some() && differences.is_empty() {
            return Ok(differences);
        }
        if actual.is_some() {
            // Not every setting can be changed in place, and a consumer has no state worth keeping.
            self.remove_consumer(pool).await?;
        } else {
            tracing::info!(consumer = name, "creating the consumer of a pool");
        }
        let created =
            self.control.bounded("create consumer", stream.create_consumer(expected.clone())).await?;
        let what = format!("consumer {name}");
        reject_differences(
            &what,
            &stream_settings::consumer_differences(&created.cached_info().config, &expected),
        )?;
        Ok(report_repairs(&what, &differences))
    }

    /// Differences of a consumer from its expected settings.
    fn consumer_problems(&self, info: &consumer::Info) -> Vec<String> {
        let Some(pool) = pool_of(&info.name) else {
            return vec![format!("consumer {} was not created by Remuda", info.name)];
        };
        let expected = stream_settings::consumer(&self.subjects, &pool, &self.options);
        let named = |difference| format!("consumer {}: {difference}", info.name);
        stream_settings::consumer_differences(&info.config, &expected).into_iter().map(named).collect()
    }
}

fn is_missing(kind: &ConsumerInfoErrorKind) -> bool {
    matches!(kind, ConsumerInfoErrorKind::NotFound | ConsumerInfoErrorKind::StreamNotFound)
}

/// The pool whose consumer has this name, if it is a Remuda consumer.
fn pool_of(consumer: &str) -> Option<Pool> {
    consumer.strip_prefix("pool-")?.parse().ok()
}

/// Logs and returns the differences that were repaired.
fn report_repairs(what: &str, differences: &[String]) -> Vec<String> {
    let named: Vec<String> = differences.iter().map(|difference| format!("{what}: {difference}")).collect();
    if !named.is_empty() {
        tracing::warn!(settings = named.join("; "), "repaired changed NATS settings");
    }
    named
}

/// Permanent error: an operator has to change the settings, or remove the object and let it be created again.
fn reject_differences(what: &str, differences: &[String]) -> Result<()> {
    if differences.is_empty() {
        return Ok(());
    }
    Err(Error::new(
        Code::Internal,
        format!("NATS {what} has unsuitable settings: {}", differences.join("; ")),
    ))
}
