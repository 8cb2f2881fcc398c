//! The way out of the process: bounded, counted, and never in anybody's way.

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
    error::OTelSdkResult,
    trace::{BatchConfigBuilder, BatchSpanProcessor, Span, SpanData, SpanExporter, SpanProcessor},
};

use crate::metrics::{self, registry};

/// Spans that may wait for the collector; those that come when there is no room are dropped.
const MOST_WAITING: usize = 16 * 1024;
/// Spans that are sent together.
const BATCH: usize = 2048;
/// The longest that a span waits for others. What a process that is killed has not sent is lost.
const SOON: Duration = Duration::from_secs(1);

/// Where finished spans go. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Outlet {
    batches: Arc<BatchSpanProcessor>,
    waiting: Arc<AtomicUsize>,
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
        let exporter = Counted { exporter, waiting: Arc::clone(&waiting) };
        let config = BatchConfigBuilder::default()
            .with_max_queue_size(MOST_WAITING)
            .with_max_export_batch_size(BATCH)
            .with_scheduled_delay(SOON)
            .build();
        let mut batches = BatchSpanProcessor::new(exporter, config);
        batches.set_resource(resource);
        Self { batches: Arc::new(batches), waiting }
    }

    /// Takes a span, or drops it when too many wait.
    pub(crate) fn take(&self, span: SpanData) {
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= MOST_WAITING {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            count(1, "dropped");
            return;
        }
        self.batches.on_end(span);
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
}

impl<E: SpanExporter> SpanExporter for Counted<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let outcome = self.exporter.export(batch).await;
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
