//! The way out of the process: bounded, counted, and never in anybody's way.

use std::{
    sync::{
        Arc, LazyLock, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use opentelemetry::{Context, KeyValue, metrics::Counter};
use opentelemetry_sdk::{
    Resource,
    error::{OTelSdkError, OTelSdkResult},
    trace::{BatchConfigBuilder, BatchSpanProcessor, Span, SpanData, SpanExporter, SpanProcessor},
};
use tokio::time::Instant;

use crate::{
    metrics::{self, registry},
    spans::fit,
};

/// Spans that may wait for the collector; those that come when there is no room are dropped.
const MOST_WAITING: usize = 16 * 1024;
/// Spans that are sent together.
const BATCH: usize = 2048;
/// The longest that a span waits for others. What a process that is killed has not sent is lost.
const SOON: Duration = Duration::from_secs(1);
/// How long a collector that did not take a batch is left alone, at first and at the most.
const FIRST_REST: Duration = Duration::from_secs(1);
const LONGEST_REST: Duration = Duration::from_secs(30);

/// Where finished spans go. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Outlet {
    batches: Arc<BatchSpanProcessor>,
    waiting: Arc<AtomicUsize>,
    rest: Arc<Mutex<Rest>>,
}

/// Made with the first span: by then it is known whether anything is measured.
static SPANS: LazyLock<Counter<u64>> = LazyLock::new(|| metrics::counter(&registry::SPANS));

fn count(spans: usize, result: &'static str) {
    SPANS.add(spans as u64, &[KeyValue::new(registry::label::RESULT, result)]);
}

/// So that the metric is there before the first span comes to anything.
pub(crate) fn announce() {
    ["exported", "failed", "dropped"].into_iter().for_each(|result| count(0, result));
}

impl Outlet {
    pub(crate) fn new(exporter: impl SpanExporter + 'static, resource: &Resource) -> Self {
        let waiting = Arc::new(AtomicUsize::new(0));
        let rest = Arc::<Mutex<Rest>>::default();
        let exporter = Counted { exporter, waiting: Arc::clone(&waiting), rest: Arc::clone(&rest) };
        let config = BatchConfigBuilder::default()
            .with_max_queue_size(MOST_WAITING)
            .with_max_export_batch_size(BATCH)
            .with_scheduled_delay(SOON)
            .build();
        let mut batches = BatchSpanProcessor::new(exporter, config);
        batches.set_resource(resource);
        Self { batches: Arc::new(batches), waiting, rest }
    }

    /// Whether the collector is away, so that spans are made for nobody. Once in a while it is not said to be, which is how its return is
    /// noticed.
    pub(crate) fn rests(&self) -> bool {
        !lock(&self.rest).is_over()
    }

    /// Takes a span, or drops it when too many wait.
    pub(crate) fn take(&self, span: SpanData) {
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= MOST_WAITING {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            count(1, "dropped");
            return;
        }
        self.batches.on_end(fit(span));
    }
}

impl SpanProcessor for Outlet {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        // What is not sampled never arrives at the exporter, so it must not be counted as waiting.
        if span.span_context.is_sampled() {
            self.take(span);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.batches.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.batches.shutdown_with_timeout(timeout)
    }
}

/// An exporter that says how many spans it got rid of, and how.
#[derive(Debug)]
struct Counted<E> {
    exporter: E,
    waiting: Arc<AtomicUsize>,
    rest: Arc<Mutex<Rest>>,
}

/// Until when nothing is sent, and how long that was to be: encoding batch after batch for a collector that is away costs and brings nothing.
#[derive(Debug, Default)]
struct Rest {
    until: Option<Instant>,
    length: Duration,
}

impl Rest {
    fn is_over(&self) -> bool {
        self.until.is_none_or(|until| until <= Instant::now())
    }

    /// The first success ends it; every failure makes the next one longer.
    fn after(&mut self, outcome: &OTelSdkResult) {
        *self = match outcome {
            Ok(()) => Self::default(),
            Err(_) => {
                let length = (self.length * 2).clamp(FIRST_REST, LONGEST_REST);
                Self { until: Some(Instant::now() + length), length }
            }
        };
    }
}

/// Held for a few instructions.
fn lock(rest: &Mutex<Rest>) -> MutexGuard<'_, Rest> {
    rest.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<E: SpanExporter> SpanExporter for Counted<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let outcome = if lock(&self.rest).is_over() {
            let outcome = self.exporter.export(batch).await;
            lock(&self.rest).after(&outcome);
            outcome
        } else {
            Err(OTelSdkError::InternalFailure("the collector did not take the spans before these".to_owned()))
        };
        self.waiting.fetch_sub(spans, Ordering::Relaxed);
        count(spans, if outcome.is_ok() { "exported" } else { "failed" });
        outcome
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// A collector that may be away, and knows how often it was asked.
    #[derive(Debug, Default)]
    struct Collector {
        away: AtomicBool,
        asked: AtomicUsize,
    }

    impl SpanExporter for Collector {
        async fn export(&self, _: Vec<SpanData>) -> OTelSdkResult {
            self.asked.fetch_add(1, Ordering::Relaxed);
            match self.away.load(Ordering::Relaxed) {
                true => Err(OTelSdkError::InternalFailure("away".to_owned())),
                false => Ok(()),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_collector_that_is_away_is_left_alone_for_longer_and_longer() {
        let exporter =
            Counted { exporter: Collector::default(), waiting: Arc::default(), rest: Arc::default() };
        let asked = || exporter.exporter.asked.swap(0, Ordering::Relaxed);
        exporter.exporter.away.store(true, Ordering::Relaxed);
        for seconds in [1, 2, 4, 8, 16, 30, 30] {
            let begun = Instant::now();
            exporter.export(Vec::new()).await.unwrap_err();
            assert_eq!(asked(), 1);
            while begun.elapsed() < Duration::from_secs(seconds) {
                exporter.export(Vec::new()).await.unwrap_err();
                tokio::time::advance(Duration::from_millis(500)).await;
            }
            assert_eq!(asked(), 0, "within {seconds} s");
        }
        exporter.exporter.away.store(false, Ordering::Relaxed);
        exporter.export(Vec::new()).await.unwrap();
        exporter.export(Vec::new()).await.unwrap();
        assert_eq!(asked(), 2);
        exporter.exporter.away.store(true, Ordering::Relaxed);
        exporter.export(Vec::new()).await.unwrap_err();
        tokio::time::advance(FIRST_REST).await;
        exporter.export(Vec::new()).await.unwrap_err();
        assert_eq!(asked(), 2, "a success makes pauses short again");
    }
}
