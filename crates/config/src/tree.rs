//! The tree of settings with their defaults. `default.toml` explains each to the operator.

mod agents;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use remuda_domain::execution::Policies;
use serde::{Deserialize, Serialize};

pub use self::agents::{Budget, Context, Delegation, Models, OnExpiry, Permissions, Platform, Rule};
use crate::{address, duration, error::Error, policy, secret::SecretUrl};

/// Every setting of every process. Each process reads the sections it needs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Absolute after [`Config::load`]; empty only where no home directory is known.
    pub data_dir: PathBuf,
    pub server: Server,
    pub stream: Stream,
    pub store: Store,
    pub nats: Nats,
    pub worker: Worker,
    pub reconciler: Reconciler,
    pub workspaces: Workspaces,
    pub sandbox: Sandbox,
    pub docker: Docker,
    pub tools: Tools,
    pub webhooks: Webhooks,
    pub platform: Platform,
    pub models: Models,
    pub permissions: Permissions,
    pub delegation: Delegation,
    pub context: Context,
    pub budget: Budget,
    pub limits: Limits,
    pub telemetry: Telemetry,
}

impl Config {
    /// The commented file that holds every key with its default.
    #[must_use]
    pub const fn default_file() -> &'static str {
        include_str!("default.toml")
    }

    /// What tenants may use, read from `sandbox.policy_file`.
    pub fn policies(&self) -> Result<Policies, Error> {
        policy::load(&self.sandbox.policy_file)
    }

    /// The settings as TOML with secrets masked: for people, not for loading again.
    #[must_use]
    pub fn to_toml(&self) -> String {
        // Plain strings, numbers and lists always have a TOML form.
        toml::to_string_pretty(self).unwrap_or_default()
    }
}

/// The control plane's server: gRPC and HTTP on one port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Server {
    #[serde(deserialize_with = "address::deserialize")]
    pub listen: SocketAddr,
    pub require_keys: RequireKeys,
    /// What clients are told; empty means the control plane itself.
    pub stream_endpoint: String,
    pub max_concurrent_streams: u32,
    pub max_connections: u32,
    /// Web pages that may call.
    pub cors_origins: Vec<String>,
    #[serde(with = "duration")]
    pub request_deadline: Duration,
    #[serde(with = "duration")]
    pub keepalive: Duration,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 7777)),
            require_keys: RequireKeys::Auto,
            stream_endpoint: String::new(),
            max_concurrent_streams: 1024,
            max_connections: 20_000,
            cors_origins: Vec::new(),
            request_deadline: Duration::from_secs(60),
            keepalive: Duration::from_secs(20),
        }
    }
}

/// Whether callers must bring an API key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RequireKeys {
    /// Embedded on a loopback address none is needed, everywhere else one is.
    #[default]
    Auto,
    Always,
    Never,
}

impl RequireKeys {
    /// Decides for a process that listens on `listen`.
    #[must_use]
    pub fn resolve(self, embedded: bool, listen: SocketAddr) -> bool {
        match self {
            Self::Auto => !(embedded && listen.ip().is_loopback()),
            Self::Always => true,
            Self::Never => false,
        }
    }
}

/// The stream service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Stream {
    #[serde(deserialize_with = "address::deserialize")]
    pub listen: SocketAddr,
    pub max_readers: u32,
    /// Events read from the store at once.
    pub replay_batch: u32,
    /// How often an idle reader compares with the store.
    #[serde(with = "duration")]
    pub catch_up: Duration,
}

impl Default for Stream {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 7778)),
            max_readers: 20_000,
            replay_batch: 500,
            catch_up: Duration::from_secs(5),
        }
    }
}

/// The database.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Store {
    /// `postgres://…` or `sqlite:…`; empty in the embedded mode means a file in the data directory.
    pub url: SecretUrl,
    pub max_connections: u32,
    /// How long a service waits for the store at start.
    #[serde(with = "duration")]
    pub connect_timeout: Duration,
}

impl Default for Store {
    fn default() -> Self {
        Self { url: SecretUrl::default(), max_connections: 16, connect_timeout: Duration::from_secs(30) }
    }
}

/// NATS, in the split modes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Nats {
    pub servers: Vec<SecretUrl>,
    /// First token of every subject and name.
    pub prefix: String,
    /// Copies of the token stream.
    pub replicas: u32,
    pub credentials_file: PathBuf,
    #[serde(with = "duration")]
    pub connect_timeout: Duration,
}

impl Default for Nats {
    fn default() -> Self {
        Self {
            servers: vec![SecretUrl::new("nats://127.0.0.1:4222")],
            prefix: "remuda".to_owned(),
            replicas: 1,
            credentials_file: PathBuf::new(),
            connect_timeout: Duration::from_secs(30),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Worker {
    /// Sessions worked on at once.
    pub slots: u32,
    pub pool: String,
    #[serde(with = "duration")]
    pub lease: Duration,
    #[serde(with = "duration")]
    pub heartbeat: Duration,
    /// How long a stopping worker waits for the next step boundary of its runs.
    #[serde(with = "duration")]
    pub drain_deadline: Duration,
    /// Runs of one session before other sessions get the slot.
    pub turn: u32,
    /// Between asking a process to end and killing it.
    #[serde(with = "duration")]
    pub kill_grace: Duration,
}

impl Default for Worker {
    fn default() -> Self {
        Self {
            slots: 16,
            pool: "default".to_owned(),
            lease: Duration::from_secs(15),
            heartbeat: Duration::from_secs(3),
            drain_deadline: Duration::from_secs(20),
            turn: 50,
            kill_grace: Duration::from_millis(500),
        }
    }
}

/// The background tasks that mend what a crash or a loss left behind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Reconciler {
    #[serde(with = "duration")]
    pub interval: Duration,
    /// How long the leading control plane may be silent before another takes over.
    #[serde(with = "duration")]
    pub lease: Duration,
}

impl Default for Reconciler {
    fn default() -> Self {
        Self { interval: Duration::from_secs(5), lease: Duration::from_secs(15) }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Workspaces {
    /// Where tenants' default workspaces live. Absolute after [`Config::load`], like the data directory.
    pub root: PathBuf,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sandbox {
    /// What which tenant may use; see [`Config::policies`].
    pub policy_file: PathBuf,
    pub hardening: Hardening,
}

/// How commands on the worker itself are held back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Hardening {
    #[default]
    None,
    /// By whatever the machine has.
    Auto,
    /// The same, and refuse to start without.
    Required,
}

/// The Docker engine and the containers on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Docker {
    pub host: String,
    pub user: String,
    pub runtime: String,
    /// `image=count`.
    pub spare: Vec<String>,
    #[serde(with = "duration")]
    pub pause_after: Duration,
    #[serde(with = "duration")]
    pub remove_after: Duration,
    pub max_containers: u32,
}

impl Default for Docker {
    fn default() -> Self {
        Self {
            host: String::new(),
            user: String::new(),
            runtime: String::new(),
            spare: Vec::new(),
            pause_after: Duration::from_secs(60),
            remove_after: Duration::from_secs(10 * 60),
            max_containers: 64,
        }
    }
}

impl Docker {
    /// The images to keep spare containers of, and how many.
    #[must_use]
    pub fn spares(&self) -> Vec<(String, u32)> {
        let parse = |entry: &String| {
            let (image, count) = entry.rsplit_once('=')?;
            Some((image.trim().to_owned(), count.trim().parse().ok()?))
        };
        self.spare.iter().filter_map(parse).collect()
    }
}

/// What native tools may do outside of the sandbox.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tools {
    pub web_allowed: Vec<String>,
    pub search_url: String,
    pub search_key: SecretUrl,
}

/// How events are delivered to webhooks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Webhooks {
    /// Hosts that may be reached though they are not public.
    pub allowed: Vec<String>,
    /// For one attempt.
    #[serde(with = "duration")]
    pub timeout: Duration,
    /// Before an event is given up.
    pub max_attempts: u32,
    /// Before the second attempt; it doubles from there.
    #[serde(with = "duration")]
    pub retry_delay: Duration,
}

impl Default for Webhooks {
    fn default() -> Self {
        Self {
            allowed: Vec::new(),
            timeout: Duration::from_secs(10),
            max_attempts: 12,
            retry_delay: Duration::from_secs(5),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    pub max_pending_runs_per_session: u32,
    /// How long a repeated submit with the same key finds the first one's run.
    #[serde(with = "duration")]
    pub idempotency_ttl: Duration,
    /// Workers a run may lose before it ends.
    pub max_lost_attempts: u32,
    /// How long events of finished runs are kept. Zero: for ever.
    #[serde(with = "duration")]
    pub events_kept: Duration,
    /// How long runs are kept after their end. Zero: for ever.
    #[serde(with = "duration")]
    pub runs_kept: Duration,
    /// How long sessions are kept in which nothing happens. Zero: for ever.
    #[serde(with = "duration")]
    pub sessions_kept: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_pending_runs_per_session: 100_000,
            idempotency_ttl: Duration::from_secs(24 * 60 * 60),
            max_lost_attempts: 5,
            events_kept: Duration::ZERO,
            runs_kept: Duration::ZERO,
            sessions_kept: Duration::ZERO,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Telemetry {
    /// What is logged: a level, or directives such as `info,remuda_worker=debug`.
    pub log: String,
    pub format: LogFormat,
    /// Where traces go over OTLP/gRPC; empty means nowhere.
    pub otlp_endpoint: String,
    /// Whether metrics go there too.
    pub otlp_metrics: bool,
    pub service_name: String,
    /// The part of traces that is kept, from 0 to 1.
    pub sample_ratio: f64,
    /// Where metrics can be scraped; `None`, written as an empty text, means nowhere.
    #[serde(with = "address::optional")]
    pub metrics_listen: Option<SocketAddr>,
    /// Whether metrics say whose they are.
    pub tenant_label: bool,
    /// Different values that a label may have whose values come from outside.
    pub max_label_values: u32,
}

impl Default for Telemetry {
    fn default() -> Self {
        Self {
            log: "info".to_owned(),
            format: LogFormat::Auto,
            otlp_endpoint: String::new(),
            otlp_metrics: true,
            service_name: "remuda".to_owned(),
            sample_ratio: 1.0,
            metrics_listen: None,
            tenant_label: false,
            max_label_values: 100,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Pretty on a terminal, JSON otherwise.
    #[default]
    Auto,
    Pretty,
    Json,
}
