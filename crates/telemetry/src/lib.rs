//! Logs, traces and metrics of every process.
//!
//! [`init`] sets up logging to standard error and, when a collector is named, traces over OTLP/gRPC. A collector
//! that is slow, unreachable or gone costs traces and nothing else: neither start nor any span waits for it, and
//! [`Guard::shutdown`] gives up on it after [`FLUSH_BOUND`].
//!
//! [`inject_current`] and [`set_parent`] carry a trace across processes as a W3C `traceparent`. [`metrics`] are a thing of
//! their own: off unless asked for.

mod context;
pub mod metrics;
mod traces;

use std::{io::IsTerminal, time::Duration};

use tracing::Subscriber;
use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    fmt::{self, MakeWriter},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

pub use context::{inject_current, set_parent};

use crate::traces::Traces;

/// The longest that [`Guard::shutdown`] waits for the collector.
pub const FLUSH_BOUND: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("invalid log filter: expected a level or directives such as info,remuda_worker=debug")]
    Filter(#[source] tracing_subscriber::filter::ParseError),
    #[error("the trace exporter cannot be set up")]
    Exporter(#[source] opentelemetry_otlp::ExporterBuildError),
    #[error("the trace exporter's thread cannot be started")]
    Runtime(#[source] std::io::Error),
    #[error("the metrics exporter cannot be set up")]
    Metrics(#[source] opentelemetry_sdk::error::OTelSdkError),
    #[error("logging is set up already")]
    Twice,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Pretty when standard error is a terminal, JSON otherwise.
    #[default]
    Auto,
    /// One line per event, for people.
    Pretty,
    /// One JSON object per line, for log collectors.
    Json,
}

#[derive(Clone, Debug)]
pub struct Options {
    /// A level, or directives such as `info,remuda_worker=debug`. Traces do not depend on it.
    pub log: String,
    pub format: Format,
    /// Where traces go (`http://127.0.0.1:4317`); `None` means nowhere.
    pub otlp_endpoint: Option<String>,
    pub service_name: String,
    /// The part of traces that is kept, from 0 to 1. A decision that came with a parent overrules it.
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

/// Sets up logs and traces for the whole process. Needs no runtime and connects to nothing yet.
pub fn init(options: &Options) -> Result<Guard, Error> {
    let (subscriber, guard) = subscriber(options, std::io::stderr)?;
    subscriber.try_init().map_err(|_| Error::Twice)?;
    Ok(guard)
}

/// Whether [`init`] would accept the filter.
pub fn check_filter(log: &str) -> Result<(), Error> {
    filter(log).map(drop)
}

fn filter(log: &str) -> Result<EnvFilter, Error> {
    EnvFilter::builder().parse(log).map_err(Error::Filter)
}

fn subscriber<W>(options: &Options, writer: W) -> Result<(impl Subscriber + Send + Sync, Guard), Error>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let filter = filter(&options.log)?;
    let json = match options.format {
        Format::Auto => !std::io::stderr().is_terminal(),
        Format::Pretty => false,
        Format::Json => true,
    };
    let lines = fmt::layer().with_writer(writer).with_ansi(options.ansi && !json);
    let lines: Box<dyn Layer<Registry> + Send + Sync> = if json {
        lines.json().flatten_event(true).with_span_list(false).boxed()
    } else {
        lines.compact().boxed()
    };
    let traces =
        options.otlp_endpoint.as_deref().map(|endpoint| Traces::new(endpoint, options)).transpose()?;
    let spans = traces.as_ref().map(|traces| traces::layer(&traces.provider));
    let subscriber = tracing_subscriber::registry().with(lines.with_filter(filter)).with(spans);
    Ok((subscriber, Guard { traces }))
}

/// Keeps traces flowing. Shut it down as the last thing a process does.
#[derive(Debug)]
#[must_use = "spans of the last seconds are lost without a shutdown"]
pub struct Guard {
    traces: Option<Traces>,
}

impl Guard {
    /// Sends what was not sent yet. Blocks for at most about [`FLUSH_BOUND`].
    pub fn shutdown(self) {
        if let Some(traces) = self.traces {
            traces.shutdown();
        }
    }
}

#[cfg(test)]
mod tests;
