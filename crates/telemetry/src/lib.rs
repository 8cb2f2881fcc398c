//! Logs, traces and metrics of every process.
//!
//! [`init`] sets up logging to standard error ([`logs`]: [`hide`] keeps secrets out, [`Levels`] change what is logged) and, when a collector is named, traces over OTLP/gRPC. A collector
//! that is slow, unreachable or gone costs traces and nothing else: neither start nor any span waits for it, and
//! [`Guard::shutdown`] gives up on it after [`FLUSH_BOUND`].
//!
//! Spans of [`TRACE_TARGET`] become part of traces, [`current`] and [`set_parent`] carry these across processes; what outlives
//! a process is told with [`spans`]. [`metrics`] are a thing of their own: off unless asked for.

mod context;
mod export;
mod logs;
pub mod metrics;
pub mod spans;
mod traces;

use std::{io::IsTerminal, sync::LazyLock, time::Duration};

use tracing::Subscriber;
use tracing_subscriber::{Layer as _, fmt::MakeWriter, layer::SubscriberExt, util::SubscriberInitExt};

pub use context::{current, set_parent};
pub use logs::{AUDIT, Level, Levels, TRACES, check_change, hide, hide_for_now};
use tokio::runtime::Handle;
pub use traces::TRACE_TARGET;

use crate::{
    logs::{Lines, log_panics},
    metrics::Measuring,
    traces::Traces,
};

/// The longest that [`Guard::shutdown`] waits for the collector.
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
    if let Some(traces) = &guard.traces {
        spans::connect(traces.outlet.clone());
    }
    log_panics();
    Ok(guard)
}

/// Names this process among those of its kind, in lines, traces and metrics alike.
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
        Lines::json(writer, &options.service_name, instance())
    } else {
        Lines::pretty(writer, options.ansi)
    };
    let traces =
        options.otlp_endpoint.as_deref().map(|endpoint| Traces::new(endpoint, options)).transpose()?;
    let spans = traces.as_ref().map(|traces| traces::layer(&traces.provider));
    let subscriber = tracing_subscriber::registry().with(lines.with_filter(levels.filter())).with(spans);
    Ok((subscriber, Guard { traces, measuring: None, levels }))
}

/// Keeps traces and metrics flowing. Shut it down as the last thing a process does.
#[derive(Debug)]
#[must_use = "spans of the last seconds are lost without a shutdown"]
pub struct Guard {
    traces: Option<Traces>,
    measuring: Option<Measuring>,
    levels: Levels,
}

impl Guard {
    /// What changes the filter of this process.
    #[must_use]
    pub fn levels(&self) -> Levels {
        self.levels.clone()
    }

    /// What connections to the collector live on, if there is one.
    #[must_use]
    pub fn runtime(&self) -> Option<Handle> {
        self.traces.as_ref().map(|traces| traces.runtime.handle().clone())
    }

    /// Takes care that the last metrics are sent too.
    pub fn keep(&mut self, measuring: Measuring) {
        self.measuring = Some(measuring);
        if self.traces.is_some() {
            export::announce();
        }
    }

    /// Sends what was not sent yet. Blocks for at most about [`FLUSH_BOUND`].
    pub fn shutdown(self) {
        let Self { traces, measuring, .. } = self;
        // Side by side, as each may have to wait for the collector.
        std::thread::scope(|scope| {
            scope.spawn(|| measuring.as_ref().map(Measuring::shutdown));
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
