//! Logs, traces and metrics of all processes.
//!
//! [`init`] sets up logging to standard error ([`logs`]) and, if a collector is set, traces over OTLP/gRPC.
//! [`mask_secret`] keeps secrets out of logs; [`Levels`] changes the log filter at run time. A slow or unreachable collector
//! only costs traces: neither the start nor any span waits for it, and [`Guard::shutdown`] gives up after [`FLUSH_BOUND`].
//!
//! Spans with [`TRACE_TARGET`] become part of traces; [`current`] and [`set_parent`] carry the context across processes.
//! Spans that outlive a process are emitted with [`spans`]. [`metrics`] are separate and off by default.

mod context;
mod logs;
pub mod metrics;
mod span_queue;
pub mod spans;
mod traces;

use std::{io::IsTerminal, sync::LazyLock, time::Duration};

use tracing::Subscriber;
use tracing_subscriber::{Layer as _, fmt::MakeWriter, layer::SubscriberExt, util::SubscriberInitExt};

pub use context::{current, set_parent};
pub use logs::{AUDIT, Level, Levels, TRACES, check_change, mask_secret, mask_secrets_temporarily};
use tokio::runtime::Handle;
pub use traces::TRACE_TARGET;

use crate::{
    logs::{LogLayer, log_panics},
    metrics::MetricsGuard,
    traces::Traces,
};

/// How long [`Guard::shutdown`] waits for the collector.
pub const FLUSH_BOUND: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("invalid log filter: expected a level or directives such as info,remuda_worker=debug")]
    Filter(#[source] tracing_subscriber::filter::ParseError),
    #[error(
        "invalid log filter: expected error, warn, info, debug, trace or off, or module=level, not `{0}`"
    )]
    NoLevel(String),
    #[error("invalid log filter: expected at most {max} characters")]
    LongFilter { max: usize },
    #[error("the exporter to the collector cannot be set up")]
    Exporter(#[source] opentelemetry_otlp::ExporterBuildError),
    #[error("the exporter's thread cannot be started")]
    Runtime(#[source] std::io::Error),
    #[error("the metrics exporter cannot be set up")]
    Metrics(#[source] opentelemetry_sdk::error::OTelSdkError),
    #[error("logging is set up already")]
    Twice,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Pretty if standard error is a terminal, JSON otherwise.
    #[default]
    Auto,
    /// One line per event, for people.
    Pretty,
    /// One JSON object per line, for log collectors.
    Json,
}

#[derive(Clone, Debug)]
pub struct Options {
    /// A level, or directives such as `info,remuda_worker=debug`. It does not affect traces.
    pub log: String,
    pub format: Format,
    /// The collector for traces, such as `http://127.0.0.1:4317`; `None` disables traces.
    pub otlp_endpoint: Option<String>,
    pub service_name: String,
    /// The share of traces that is sampled, from 0 to 1. The decision of a parent span takes precedence.
    pub sample_ratio: f64,
    /// Colours in the pretty format.
    pub ansi: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            log: "info".to_owned(),
            format: Format::Auto,
            otlp_endpoint: None,
            service_name: "remuda".to_owned(),
            sample_ratio: 1.0,
            ansi: false,
        }
    }
}

/// Sets up logs and traces for the whole process. Needs no runtime and opens no connections.
pub fn init(options: &Options) -> Result<Guard, Error> {
    let (subscriber, guard) = subscriber(options, std::io::stderr)?;
    subscriber.try_init().map_err(|_| Error::Twice)?;
    if let Some(traces) = &guard.traces {
        spans::connect(traces.queue.clone());
    }
    log_panics();
    Ok(guard)
}

/// The unique name of this process in logs, traces and metrics.
#[must_use]
pub fn instance() -> &'static str {
    static INSTANCE: LazyLock<String> = LazyLock::new(|| uuid::Uuid::new_v4().to_string());
    &INSTANCE
}

/// Whether [`init`] would accept the filter.
pub fn check_filter(log: &str) -> Result<(), Error> {
    Levels::new(log).map(drop)
}

fn subscriber<W>(options: &Options, writer: W) -> Result<(impl Subscriber + Send + Sync, Guard), Error>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let levels = Levels::new(&options.log)?;
    let json = match options.format {
        Format::Auto => !std::io::stderr().is_terminal(),
        Format::Pretty => false,
        Format::Json => true,
    };
    let lines = if json {
        LogLayer::json(writer, &options.service_name, instance())
    } else {
        LogLayer::pretty(writer, options.ansi)
    };
    let traces =
        options.otlp_endpoint.as_deref().map(|endpoint| Traces::new(endpoint, options)).transpose()?;
    let spans = traces.as_ref().map(|traces| traces::layer(&traces.provider));
    let subscriber = tracing_subscriber::registry().with(lines.with_filter(levels.filter())).with(spans);
    Ok((subscriber, Guard { traces, metrics: None, levels }))
}

/// Keeps the exporters alive. Shut it down at the end of the process.
#[derive(Debug)]
#[must_use = "spans of the last seconds are lost without a shutdown"]
pub struct Guard {
    traces: Option<Traces>,
    metrics: Option<MetricsGuard>,
    levels: Levels,
}

impl Guard {
    /// The handle that changes the log filter of this process.
    #[must_use]
    pub fn levels(&self) -> Levels {
        self.levels.clone()
    }

    /// The runtime for connections to the collector, if there is one.
    #[must_use]
    pub fn runtime(&self) -> Option<Handle> {
        self.traces.as_ref().map(|traces| traces.runtime.handle().clone())
    }

    /// Makes the shutdown flush the metrics as well.
    pub fn attach_metrics(&mut self, metrics: MetricsGuard) {
        self.metrics = Some(metrics);
        if self.traces.is_some() {
            span_queue::register_metric();
        }
    }

    /// Flushes traces and metrics. Blocks for at most about [`FLUSH_BOUND`].
    pub fn shutdown(self) {
        let Self { traces, metrics, .. } = self;
        // In parallel, as each may have to wait for the collector.
        std::thread::scope(|scope| {
            scope.spawn(|| metrics.as_ref().map(MetricsGuard::shutdown));
            if let Some(traces) = &traces {
                traces.flush();
            }
        });
        if let Some(traces) = traces {
            traces.end();
        }
    }
}

#[cfg(test)]
mod tests;
