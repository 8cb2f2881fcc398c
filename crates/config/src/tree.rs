//! All settings with their defaults. `default.toml` documents them for operators.

mod agents;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use remuda_domain::execution::Policies;
use serde::{Deserialize, Serialize};

pub use self::agents::{Budget, Context, Delegation, Models, OnExpiry, Permissions, Platform, Rule};
use crate::{address, bytes, duration, error::Error, policy, secret_text::SecretText, secret_url::SecretUrl};

/// The settings of all processes. Each process uses the sections it needs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Absolute after [`Config::load`]; empty only if no home directory is known.
    pub data_dir: PathBuf,
    pub server: Server,
    pub stream: Stream,
    pub tls: Tls,
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
    /// The commented file with every key and its default.
    #[must_use]
    pub const fn default_file() -> &'static str {
        include_str!("default.toml")
    }

    /// Loads what tenants may use from `sandbox.policy_file`.
    pub fn policies(&self) -> Result<Policies, Error> {
        policy::load(&self.sandbox.policy_file)
    }

    /// The settings as TOML with masked secrets: for display, not for loading.
    #[must_use]
    pub fn to_toml(&self) -> String {
        // Strings, numbers and lists can always be serialized as TOML.
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
    /// Sent to clients; empty means the control plane itself.
    pub stream_endpoint: String,
    pub max_concurrent_streams: u32,
    pub max_connections: u32,
    /// Origins of web pages that may call the API.
    pub cors_origins: Vec<String>,
    /// Names under which clients may reach the server. Empty: any with keys, those of the machine itself without.
    pub allowed_hosts: Vec<String>,
    /// Proxies in front of the server that append to `X-Forwarded-For`.
    pub trusted_proxies: u32,
    /// Memory for the bodies of all requests in flight.
    #[serde(with = "bytes")]
    pub body_memory: u64,
    /// The same for each tenant.
    #[serde(with = "bytes")]
    pub body_memory_per_tenant: u64,
    /// Longest pause between two pieces of a body.
    #[serde(with = "duration")]
    pub body_timeout: Duration,
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
            allowed_hosts: Vec::new(),
            trusted_proxies: 0,
            body_memory: 512 << 20,
            body_memory_per_tenant: 64 << 20,
            body_timeout: Duration::from_secs(20),
            request_deadline: Duration::from_secs(60),
            keepalive: Duration::from_secs(20),
        }
    }
}

/// Whether clients must send an API key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RequireKeys {
    /// Required, except in the embedded mode on a loopback address.
    #[default]
    Auto,
    Always,
    Never,
}

impl RequireKeys {
    /// Whether a process that listens on `listen` requires keys.
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
    /// Events read from the store at a time.
    pub replay_batch: u32,
    /// How often the store is checked for missed events.
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

/// The certificate of all ports of a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    /// PEM file with the certificate and those that lead to its authority. Empty: no TLS.
    pub certificate: PathBuf,
    /// PEM file with the certificate's private key.
    pub key: PathBuf,
    /// How often the files are checked for changes.
    #[serde(with = "duration")]
    pub reload: Duration,
}

impl Default for Tls {
    fn default() -> Self {
        Self { certificate: PathBuf::new(), key: PathBuf::new(), reload: Duration::from_secs(60) }
    }
}

impl Tls {
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        !self.certificate.as_os_str().is_empty()
    }
}

/// The database.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Store {
    /// `postgres://…` or `sqlite:…`; empty in the embedded mode means a file in the data directory.
    pub url: SecretUrl,
    pub max_connections: u32,
    /// How long a starting service waits for the store.
    #[serde(with = "duration")]
    pub connect_timeout: Duration,
}

impl Default for Store {
    fn default() -> Self {
        Self { url: SecretUrl::default(), max_connections: 16, connect_timeout: Duration::from_secs(30) }
    }
}

/// NATS, for split installations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Nats {
    pub servers: Vec<SecretUrl>,
    /// The first token of every subject and name.
    pub prefix: String,
    /// Replicas of the token stream.
    pub replicas: u32,
    /// The seed of a key, or a `.creds` file.
    pub credentials_file: PathBuf,
    /// What `credentials_file` would contain.
    pub key: SecretText,
    /// The authority of the server's certificate, besides those of the system.
    pub ca_file: PathBuf,
    #[serde(with = "duration")]
    pub connect_timeout: Duration,
    pub signing: BusSigning,
}

impl Default for Nats {
    fn default() -> Self {
        Self {
            servers: vec![SecretUrl::new("nats://127.0.0.1:4222")],
            prefix: "remuda".to_owned(),
            replicas: 1,
            credentials_file: PathBuf::new(),
            key: SecretText::default(),
            ca_file: PathBuf::new(),
            connect_timeout: Duration::from_secs(30),
            signing: BusSigning::default(),
        }
    }
}

/// Whether messages between services are signed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BusSigning {
    /// Neither signed nor checked.
    Off,
    /// Signed, and unsigned ones are accepted: for the time of an upgrade.
    Sign,
    /// Only signed ones are accepted.
    #[default]
    Require,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Worker {
    /// Sessions executed concurrently.
    pub slots: u32,
    pub pool: String,
    #[serde(with = "duration")]
    pub lease: Duration,
    #[serde(with = "duration")]
    pub heartbeat: Duration,
    /// How long a stopping worker waits for its runs to reach a step boundary.
    #[serde(with = "duration")]
    pub drain_deadline: Duration,
    /// Runs of one session before the slot goes to a waiting session.
    pub turn: u32,
    /// Time between asking a process to terminate and killing it.
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

/// The background tasks that repair state after crashes and lost messages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Reconciler {
    #[serde(with = "duration")]
    pub interval: Duration,
    /// How long the control plane that runs the tasks may be silent before another takes over.
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
    /// The parent of the tenants' own directories. Absolute after [`Config::load`], like the data directory.
    pub root: PathBuf,
    /// Further directories beneath which workspaces may lie; `{tenant}` stands for the tenant's name.
    pub allowed: Vec<PathBuf>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sandbox {
    /// What each tenant may use; see [`Config::policies`].
    pub policy_file: PathBuf,
    pub hardening: Hardening,
    /// Further paths that confined commands may read.
    pub readable: Vec<PathBuf>,
}

/// Restrictions for commands that run on the worker itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Hardening {
    #[default]
    None,
    /// As far as the machine can.
    Auto,
    /// To the workspace and a minimal system, or the worker does not start.
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
    /// The images to keep spare containers of, with their number.
    #[must_use]
    pub fn spares(&self) -> Vec<(String, u32)> {
        let parse = |entry: &String| {
            let (image, count) = entry.rsplit_once('=')?;
            Some((image.trim().to_owned(), count.trim().parse().ok()?))
        };
        self.spare.iter().filter_map(parse).collect()
    }
}

/// Access of native tools outside of the sandbox.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tools {
    pub web_allowed: Vec<String>,
    pub search_url: String,
    pub search_key: SecretText,
}

/// Delivery of events to webhooks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Webhooks {
    /// Hosts that may be used although they are not public.
    pub allowed: Vec<String>,
    /// Timeout of one attempt.
    #[serde(with = "duration")]
    pub timeout: Duration,
    /// Attempts before an event becomes a dead letter.
    pub max_attempts: u32,
    /// The pause before the second attempt; it doubles after each failure.
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
    /// How long a repeated submit with the same key returns the run of the first one.
    #[serde(with = "duration")]
    pub idempotency_ttl: Duration,
    /// Workers that may die while they execute the same run, before it fails.
    pub max_lost_attempts: u32,
    /// How long events of finished runs are kept. Zero: for ever.
    #[serde(with = "duration")]
    pub events_kept: Duration,
    /// How long runs are kept after their end. Zero: for ever.
    #[serde(with = "duration")]
    pub runs_kept: Duration,
    /// How long inactive sessions are kept. Zero: for ever.
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
    /// The log filter: a level, or directives such as `info,remuda_worker=debug`.
    pub log: String,
    pub format: LogFormat,
    /// The OTLP/gRPC address of the collector; empty means no traces.
    pub otlp_endpoint: String,
    /// Whether metrics are sent there as well.
    pub otlp_metrics: bool,
    pub service_name: String,
    /// The share of traces that is sampled, from 0 to 1.
    pub sample_ratio: f64,
    /// The address for scraping metrics. `None`, written as an empty string, disables it.
    #[serde(with = "address::optional")]
    pub metrics_listen: Option<SocketAddr>,
    /// Whether metrics have a label for the tenant.
    pub tenant_label: bool,
    /// Limit of distinct values for labels with values from outside.
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
