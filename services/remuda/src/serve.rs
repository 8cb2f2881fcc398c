//! The commands that start servers: `dev`, `all`, `control-plane`, `worker` and `stream`.

use std::{net::SocketAddr, process::ExitCode};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use remuda_config::{Config, LoadOptions, LogFormat, Tls};
use remuda_domain::{Code, Error, error::Result};
use remuda_node::{Mode, Node, Options, Roles};
use remuda_tls::{ServerTls, TlsFiles};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::{
    cli::{DevArgs, ServeArgs, WorkerArgs},
    config, doctor,
    metrics::Metrics,
    output::{Output, Style},
};

pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The mode that follows from store.url: embedded without a database server.
pub(crate) fn inferred_mode(config: &Config) -> Mode {
    let url = config.store.url.expose();
    if url.is_empty() || url.starts_with("sqlite:") { Mode::Embedded } else { Mode::Split }
}

impl From<Mode> for doctor::Mode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Embedded => Self::Embedded,
            Mode::Split => Self::Split,
        }
    }
}

pub(crate) async fn dev(_: &DevArgs, load: &LoadOptions, output: Output) -> Result<ExitCode> {
    serve("dev", Mode::Embedded, Roles::ALL, load, output).await
}

pub(crate) async fn all(_: &ServeArgs, load: &LoadOptions, output: Output) -> Result<ExitCode> {
    serve("all", Mode::Split, Roles::ALL, load, output).await
}

pub(crate) async fn control_plane(_: &ServeArgs, load: &LoadOptions, output: Output) -> Result<ExitCode> {
    serve("control-plane", Mode::Split, Roles::CONTROL_PLANE, load, output).await
}

pub(crate) async fn worker(_: &WorkerArgs, load: &LoadOptions, output: Output) -> Result<ExitCode> {
    serve("worker", Mode::Split, Roles::WORKER, load, output).await
}

pub(crate) async fn stream(_: &ServeArgs, load: &LoadOptions, output: Output) -> Result<ExitCode> {
    serve("stream", Mode::Split, Roles::STREAM, load, output).await
}

async fn serve(name: &str, mode: Mode, roles: Roles, load: &LoadOptions, output: Output) -> Result<ExitCode> {
    let config = config(load)?;
    let mut telemetry = start_telemetry(name, mode, &config, output)?;
    raise_open_file_limit();
    let stop = CancellationToken::new();
    // Handle signals from the start: waiting for a database must be interruptible.
    let signals = Signals::listen()?;
    let service_name = service_name(name, mode, &config.telemetry.service_name);
    let tls = server_tls(&config.tls)?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let metrics = Metrics::start(&config.telemetry, service_name, tls.clone(), &mut telemetry).await?;
    let scraped_at = metrics.as_ref().map(|metrics| format!("{scheme}://{}/metrics", metrics.address));
    let guard_program = std::env::current_exe()
        .map_err(|error| Error::internal("the path of this program is unknown").with_source(error))?;
    let options = Options {
        config: config.clone(),
        mode,
        roles,
        version: VERSION.to_owned(),
        levels: telemetry.levels(),
        tls: tls.clone(),
        guard: Some((guard_program, vec!["guard".to_owned()])),
    };
    let service = async {
        let node = Node::start(options).await?;
        print_ready(name, mode, node.address(), scraped_at.as_deref(), &config, output);
        let reloading = tls.map(|tls| tls.watch(config.tls.reload, stop.clone()));
        let reloading = async {
            match reloading {
                Some(reloading) => reloading.await,
                None => stop.cancelled().await,
            }
        };
        tokio::join!(node.run(stop.clone()), reloading);
        Ok(())
    };
    let outcome = tokio::select! {
        outcome = service => outcome,
        () = signals.wait_for_two(&stop) => Ok(()),
    };
    if let Some(metrics) = metrics {
        metrics.stop().await;
    }
    telemetry.shutdown();
    outcome.map(|()| ExitCode::SUCCESS)
}

/// The certificate of all ports of the process, if one is configured.
pub(crate) fn server_tls(settings: &Tls) -> Result<Option<ServerTls>> {
    let files = TlsFiles { certificate: settings.certificate.clone(), key: settings.key.clone() };
    settings.is_enabled().then(|| ServerTls::load(files)).transpose()
}

/// Raises the soft limit of open files to the hard limit: a server needs one per connection, and the usual soft limit is 1,024.
/// Commands of tools get limits of their own.
fn raise_open_file_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::warn!(%error, "raising the limit of open files failed; it stays as it is");
    }
}

/// The service name for telemetry. In split mode the default name gets the role as a suffix.
fn service_name(name: &str, mode: Mode, configured: &str) -> String {
    match (mode, configured) {
        (Mode::Split, "remuda") => format!("remuda-{name}"),
        (_, configured) => configured.to_owned(),
    }
}

fn start_telemetry(
    name: &str,
    mode: Mode,
    config: &Config,
    output: Output,
) -> Result<remuda_telemetry::Guard> {
    for secret in config.secrets() {
        remuda_telemetry::mask_secret(&secret);
    }
    let settings = &config.telemetry;
    let options = remuda_telemetry::Options {
        log: settings.log.clone(),
        format: match settings.format {
            LogFormat::Auto => remuda_telemetry::Format::Auto,
            LogFormat::Pretty => remuda_telemetry::Format::Pretty,
            LogFormat::Json => remuda_telemetry::Format::Json,
        },
        otlp_endpoint: (!settings.otlp_endpoint.is_empty()).then(|| settings.otlp_endpoint.clone()),
        service_name: service_name(name, mode, &settings.service_name),
        sample_ratio: settings.sample_ratio,
        ansi: output.err.color,
    };
    remuda_telemetry::init(&options).map_err(|error| Error::new(Code::InvalidArgument, error.to_string()))
}

/// Prints the address and next steps; with `--json` one line of JSON.
fn print_ready(
    name: &str,
    mode: Mode,
    address: Option<SocketAddr>,
    metrics: Option<&str>,
    config: &Config,
    output: Output,
) {
    let scheme = if config.tls.is_enabled() { "https" } else { "http" };
    let endpoint = address.map(|address| format!("{scheme}://{address}"));
    if output.json {
        output.json_line(&serde_json::json!({
            "ready": name,
            "mode": mode.as_str(),
            "endpoint": endpoint,
            "metrics": metrics,
            "version": VERSION,
        }));
        return;
    }
    let out = output.out;
    let parts = match mode {
        Mode::Embedded => "SQLite, in-process queue",
        Mode::Split => "PostgreSQL, NATS JetStream",
    };
    out.line(&format!("{} {VERSION} ({parts})", out.paint(Style::Bold, &format!("remuda {name}"))));
    let row = |label: &str, value: &str| {
        out.line(&format!("  {} {value}", out.paint(Style::Dim, &format!("{label:<10}"))))
    };
    if let (Some(endpoint), Some(address)) = (&endpoint, address) {
        let embedded = mode == Mode::Embedded;
        let keys = if config.server.require_keys.resolve(embedded, address) {
            "API key required: remuda keys create"
        } else {
            "no API key needed"
        };
        row("listening", &format!("{endpoint} (gRPC and HTTP; {keys})"));
    }
    if let Some(metrics) = metrics {
        row("metrics", metrics);
    }
    if mode == Mode::Embedded {
        row("data", &config.data_dir.display().to_string());
    }
    if let Some(endpoint) = endpoint.filter(|_| name != "stream") {
        let default = endpoint == "http://127.0.0.1:7777";
        let flag = if default { String::new() } else { format!(" --endpoint {endpoint}") };
        row("try", &format!("remuda run --tool Bash --arg command='echo hi' --session s1 --follow{flag}"));
    }
    row("stop", "Ctrl-C");
}

/// SIGINT and SIGTERM.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn listen() -> Result<Self> {
        let failed = |error| Error::internal("signals cannot be received").with_source(error);
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).map_err(failed)?,
            terminate: signal(SignalKind::terminate()).map_err(failed)?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Cancels `stop` at the first signal and returns at the second.
    async fn wait_for_two(mut self, stop: &CancellationToken) {
        self.next().await;
        tracing::info!("stopping; a second signal exits immediately");
        stop.cancel();
        self.next().await;
        tracing::warn!("second signal received; exiting immediately");
    }
}
