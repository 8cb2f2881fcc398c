//! The span queue: a bounded, counted, non-blocking queue of finished spans for the collector.

use std::{
    sync::{
        Arc, LazyLock,
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
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::{
    metrics::{self, registry},
    spans::sanitized,
};

/// Queue capacity. Spans are dropped when it is full.
const CAPACITY: usize = 16 * 1024;
/// Spans per batch.
const BATCH_SIZE: usize = 2048;
/// The maximum delay before a batch is sent. A killed process loses the spans that it has not sent.
const MAX_DELAY: Duration = Duration::from_secs(1);
/// First and maximum backoff after a failed export.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// A queue of finished spans for the collector. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct SpanQueue {
    batches: Arc<BatchSpanProcessor>,
    queued: Arc<AtomicUsize>,
    backoff: Arc<Mutex<Backoff>>,
}

/// Created with the first span: metrics are installed by then.
static SPANS: LazyLock<Counter<u64>> = LazyLock::new(|| metrics::counter(&registry::SPANS));

fn count(spans: usize, result: &'static str) {
    SPANS.add(spans as u64, &[KeyValue::new(registry::label::RESULT, result)]);
}

/// Initializes the metric with zero, so that it exists before the first span.
pub(crate) fn register_metric() {
    ["exported", "failed", "dropped"].into_iter().for_each(|result| count(0, result));
}

impl SpanQueue {
    pub(crate) fn new(exporter: impl SpanExporter + 'static, resource: &Resource) -> Self {
        let queued = Arc::new(AtomicUsize::new(0));
        let backoff = Arc::<Mutex<Backoff>>::default();
        let exporter =
            CountingExporter { exporter, queued: Arc::clone(&queued), backoff: Arc::clone(&backoff) };
        let config = BatchConfigBuilder::default()
            .with_max_queue_size(CAPACITY)
            .with_max_export_batch_size(BATCH_SIZE)
            .with_scheduled_delay(MAX_DELAY)
            .build();
        let mut batches = BatchSpanProcessor::new(exporter, config);
        batches.set_resource(resource);
        Self { batches: Arc::new(batches), queued, backoff }
    }

    /// Whether exports are paused because the collector is unavailable. The pause ends from time to time to probe the
    /// collector.
    pub(crate) fn is_paused(&self) -> bool {
        !lock(&self.backoff).is_over()
    }

    /// Queues a span, or drops it if the queue is full.
    pub(crate) fn push(&self, span: SpanData) {
        if self.queued.fetch_add(1, Ordering::Relaxed) >= CAPACITY {
            self.queued.fetch_sub(1, Ordering::Relaxed);
            count(1, "dropped");
            return;
        }
        self.batches.on_end(sanitized(span));
    }
}

impl SpanProcessor for SpanQueue {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        // A span that is not sampled never reaches the exporter, so it must not be counted as queued.
        if span.span_context.is_sampled() {
            self.push(span);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.batches.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.batches.shutdown_with_timeout(timeout)
    }
}

/// An exporter that counts exported and failed spans, and backs off after failures.
#[derive(Debug)]
struct CountingExporter<E> {
    exporter: E,
    queued: Arc<AtomicUsize>,
    backoff: Arc<Mutex<Backoff>>,
}

/// The backoff after failed exports. It saves the cost of encoding batches for an unavailable collector.
#[derive(Debug, Default)]
struct Backoff {
    until: Option<Instant>,
    length: Duration,
}

impl Backoff {
    fn is_over(&self) -> bool {
        self.until.is_none_or(|until| until <= Instant::now())
    }

    /// A success resets the backoff; a failure doubles it.
    fn update(&mut self, outcome: &OTelSdkResult) {
        *self = match outcome {
            Ok(()) => Self::default(),
            Err(_) => {
                let length = (self.length * 2).clamp(FIRST_BACKOFF, MAX_BACKOFF);
                Self { until: Some(Instant::now() + length), length }
            }
        };
    }
}

/// Only held for a few instructions.
fn lock(backoff: &Mutex<Backoff>) -> MutexGuard<'_, Backoff> {
    backoff.lock()
}

impl<E: SpanExporter> SpanExporter for CountingExporter<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let outcome = if lock(&self.backoff).is_over() {
            let outcome = self.exporter.export(batch).await;
            lock(&self.backoff).update(&outcome);
            outcome
        } else {
            Err(OTelSdkError::InternalFailure("export paused after a failure of the collector".to_owned()))
        };
        self.queued.fetch_sub(spans, Ordering::Relaxed);
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

    /// A collector that can be unavailable and counts its calls.
    #[derive(Debug, Default)]
    struct Collector {
        unavailable: AtomicBool,
        calls: AtomicUsize,
    }

    impl SpanExporter for Collector {
        async fn export(&self, _: Vec<SpanData>) -> OTelSdkResult {
            self.calls.fetch_add(1, Ordering::Relaxed);
            match self.unavailable.load(Ordering::Relaxed) {
                true => Err(OTelSdkError::InternalFailure("away".to_owned())),
                false => Ok(()),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn backoff_doubles_while_the_collector_is_unavailable() {
        let exporter = CountingExporter {
            exporter: Collector::default(),
            queued: Arc::default(),
            backoff: Arc::default(),
        };
        let calls = || exporter.exporter.calls.swap(0, Ordering::Relaxed);
        exporter.exporter.unavailable.store(true, Ordering::Relaxed);
        for seconds in [1, 2, 4, 8, 16, 30, 30] {
            let begun = Instant::now();
            exporter.export(Vec::new()).await.unwrap_err();
            assert_eq!(calls(), 1);
            while begun.elapsed() < Duration::from_secs(seconds) {
                exporter.export(Vec::new()).await.unwrap_err();
                tokio::time::advance(Duration::from_millis(500)).await;
            }
            assert_eq!(calls(), 0, "within {seconds} s");
        }
        exporter.exporter.unavailable.store(false, Ordering::Relaxed);
        exporter.export(Vec::new()).await.unwrap();
        exporter.export(Vec::new()).await.unwrap();
        assert_eq!(calls(), 2);
        exporter.exporter.unavailable.store(true, Ordering::Relaxed);
        exporter.export(Vec::new()).await.unwrap_err();
        tokio::time::advance(FIRST_BACKOFF).await;
        exporter.export(Vec::new()).await.unwrap_err();
        assert_eq!(calls(), 2, "a success resets the backoff");
    }
}
