//! Starts and stops a process with its roles.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use remuda_config::Config;
use remuda_control_plane::{
    App, AppOptions, Health, PREFIX, ProcessLogs, Reconciler, ReconcilerOptions, ServerInfo, Services,
};
use remuda_domain::{
    error::{Error, Result},
    execution::{BackendKind, Policies},
    logs::Role,
    tool::ToolCall,
};
use remuda_engine::{Engine, Placement};
use remuda_grpc::{Authenticator, BrowserRules, Gate, KeyPolicy, RequestLimits};
use remuda_http::ServeOptions;
use remuda_sandbox::{Backends, FeatureState, Guard, local::Hardening};
use remuda_stream::{StreamOptions, StreamParts, Streams};
use remuda_telemetry::Levels;
use remuda_tls::ServerTls;
use remuda_tools::Registry;
use remuda_worker::{Worker, WorkerOptions};
use tokio::{net::TcpListener, sync::watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use utoipa_axum::router::OpenApiRouter;

use crate::connections::{Connections, DEFAULT_TENANT, Mode, workspace_root, workspace_roots};

/// How long open calls may continue after the stop signal.
const SERVER_DRAIN: Duration = Duration::from_secs(5);
/// How long closing the NATS connection may take.
const NATS_CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The roles of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roles {
    pub control_plane: bool,
    pub worker: bool,
    pub stream: bool,
}

impl Roles {
    pub const ALL: Self = Self { control_plane: true, worker: true, stream: true };
    pub const CONTROL_PLANE: Self = Self { control_plane: true, worker: false, stream: false };
    pub const WORKER: Self = Self { control_plane: false, worker: true, stream: false };
    pub const STREAM: Self = Self { control_plane: false, worker: false, stream: true };

    fn names(self) -> Vec<Role> {
        let Self { control_plane, worker, stream } = self;
        let all = [(control_plane, Role::ControlPlane), (worker, Role::Worker), (stream, Role::Stream)];
        all.into_iter().filter_map(|(has, role)| has.then_some(role)).collect()
    }
}

#[derive(Clone, Debug)]
pub struct Options {
    pub config: Config,
    pub mode: Mode,
    pub roles: Roles,
    pub version: String,
    /// The log filter of this process.
    pub levels: Levels,
    /// The certificate of the port, if it has TLS.
    pub tls: Option<ServerTls>,
    /// The program and arguments of the guard that kills tools when this process dies. Without a guard, tools survive it.
    pub guard: Option<(PathBuf, Vec<String>)>,
}

/// A running process. Call [`Node::run`] to keep it running.
#[derive(Debug)]
pub struct Node {
    address: Option<SocketAddr>,
    tasks: TaskTracker,
    stop: CancellationToken,
    connections: Connections,
}

impl Node {
    /// Binds the port, opens store and transport, starts the roles.
    pub async fn start(options: Options) -> Result<Self> {
        // A tool of a worker that runs as this user could otherwise read the secrets of this process.
        remuda_sandbox::local::conceal_process()?;
        let listener = bind(&options).await?;
        let address = match &listener {
            Some(listener) => Some(listener.local_addr().map_err(no_address)?),
            None => None,
        };
        let connections = Connections::open(&options.config, options.mode, options.roles).await?;
        let logs = ProcessLogs::new(
            options.levels.clone(),
            remuda_telemetry::instance(),
            &host_name(),
            &options.roles.names(),
        );
        let starter = Starter {
            options: &options,
            connections: &connections,
            logs,
            tools: crate::execution::tools(&options.config)?,
            policies: crate::execution::policies(&options.config)?,
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        };
        let listening = starter.logs.clone().listen(Arc::clone(&connections.transport), starter.stop.clone());
        starter.tasks.spawn(listening);
        if let Some(listener) = listener {
            starter.start_server(listener).await?;
        }
        if options.roles.worker {
            starter.start_worker().await?;
        }
        let Starter { tasks, stop, .. } = starter;
        Ok(Self { address, tasks, stop, connections })
    }

    /// The address that this process serves, if any.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    #[must_use]
    pub fn connections(&self) -> &Connections {
        &self.connections
    }

    /// Runs until `stop`, then drains.
    pub async fn run(self, stop: CancellationToken) {
        stop.cancelled().await;
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        if let Some(nats) = &self.connections.nats {
            // Best effort: the reconciler recovers lost messages.
            drop(tokio::time::timeout(NATS_CLOSE_TIMEOUT, nats.close()).await);
        }
    }
}

fn no_address(error: std::io::Error) -> Error {
    Error::internal("the listener has no address").with_source(error)
}

/// Binds the control plane's address, or the stream service's if the process has only that role.
async fn bind(options: &Options) -> Result<Option<TcpListener>> {
    let address = match options.roles {
        Roles { control_plane: true, .. } => options.config.server.listen,
        Roles { stream: true, .. } => options.config.stream.listen,
        Roles { .. } => return Ok(None),
    };
    remuda_http::bind(address).await.map(Some)
}

struct Starter<'a> {
    options: &'a Options,
    connections: &'a Connections,
    logs: ProcessLogs,
    tools: Registry,
    policies: Arc<Policies>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Starter<'_> {
    async fn start_server(&self, listener: TcpListener) -> Result<()> {
        let Options { config, mode, roles, version, .. } = self.options;
        let gate = self.gate(listener.local_addr().map_err(no_address)?).await?;
        let (mut grpc, reporter) = remuda_grpc::base_services()?;
        let mut http = OpenApiRouter::new();
        if roles.control_plane {
            let app = App::new(self.app_options()?, self.tasks.clone());
            let info = ServerInfo {
                version: version.clone(),
                mode: mode.as_str(),
                stream_endpoint: config.server.stream_endpoint.clone(),
                keys_required: gate.keys_required(),
            };
            let services = Services::new(&app, &gate, info);
            services.add_to(&mut grpc);
            http = http.merge(services.routes());
            self.start_reconciler(&app);
        }
        let stream = StreamOptions {
            max_readers: config.stream.max_readers as usize,
            replay_batch: config.stream.replay_batch as usize,
            catch_up: config.stream.catch_up,
        };
        // A control plane streams as well, so that a small installation needs no stream service.
        let Connections { store, transport, .. } = self.connections;
        let parts = StreamParts {
            store: Arc::clone(store),
            transport: Arc::clone(transport),
            gate: gate.clone(),
            tasks: self.tasks.clone(),
            stop: self.stop.clone(),
        };
        let streams = Streams::new(parts, &stream);
        streams.add_to(&mut grpc);
        http = http.merge(streams.routes());
        let (health, healthy) = watch::channel(Health::default());
        self.tasks.spawn(remuda_control_plane::report_health(
            reporter,
            health,
            Arc::clone(store),
            Arc::clone(transport),
            self.stop.clone(),
        ));
        let http = OpenApiRouter::with_openapi(remuda_control_plane::description())
            .nest(PREFIX, http)
            .merge(remuda_control_plane::health_routes(healthy));
        let (http, mut api) = http.split_for_parts();
        api.info.version.clone_from(version);
        let cors = remuda_http::cors(&config.server.cors_origins)?;
        let http = remuda_http::edge(http.merge(remuda_http::docs(api)), cors, gate.clone());
        let serving = ServeOptions {
            keepalive: config.server.keepalive,
            max_concurrent_streams: config.server.max_concurrent_streams,
            max_connections: config.server.max_connections as usize,
            drain: SERVER_DRAIN,
            tls: self.options.tls.clone(),
        };
        let grpc = remuda_grpc::router(grpc, gate)?;
        self.tasks.spawn(remuda_http::serve(listener, grpc, http, serving, self.stop.clone()));
        Ok(())
    }

    async fn gate(&self, address: SocketAddr) -> Result<Gate> {
        let Options { config, mode, .. } = self.options;
        let required = config.server.require_keys.resolve(*mode == Mode::Embedded, address);
        let store = &self.connections.store;
        let policy = if required {
            KeyPolicy::Required
        } else {
            let root = workspace_root(config, DEFAULT_TENANT)?;
            let tenant = store.ensure_tenant(DEFAULT_TENANT, &root.to_string_lossy()).await?;
            KeyPolicy::Optional { tenant: tenant.id }
        };
        let server = &config.server;
        let limits = RequestLimits {
            body_memory: size(server.body_memory),
            body_memory_per_tenant: size(server.body_memory_per_tenant),
            body_timeout: server.body_timeout,
            trusted_proxies: server.trusted_proxies as usize,
        };
        let auth = Authenticator::with_limits(Arc::clone(store), policy, limits);
        let (hosts, origins) = (server.allowed_hosts.clone(), server.cors_origins.clone());
        let browsers = BrowserRules::new(address.ip(), required, hosts, origins);
        Ok(Gate::new(auth, server.request_deadline, browsers))
    }

    fn app_options(&self) -> Result<AppOptions> {
        let tools = self.tools.clone();
        Ok(AppOptions {
            store: Arc::clone(&self.connections.store),
            transport: Arc::clone(&self.connections.transport),
            dispatcher: self.connections.dispatcher.clone(),
            tools: self.tools.names().map(str::to_owned).collect(),
            check_call: Arc::new(move |call: &ToolCall| match tools.get(&call.tool) {
                Some(tool) => tool.validate(&call.arguments),
                None => Ok(()),
            }),
            policies: Arc::clone(&self.policies),
            workspace_roots: workspace_roots(&self.options.config, self.options.mode),
            webhooks: crate::execution::webhooks(&self.options.config)?,
            logs: self.logs.clone(),
        })
    }

    fn start_reconciler(&self, app: &App) {
        let (settings, limits) = (&self.options.config.reconciler, &self.options.config.limits);
        let options = ReconcilerOptions {
            host: host_name(),
            interval: settings.interval,
            lease: settings.lease,
            events_kept: limits.events_kept,
            runs_kept: limits.runs_kept,
            sessions_kept: limits.sessions_kept,
        };
        self.tasks.spawn(Reconciler::new(app, options).run(self.stop.clone()));
    }

    async fn start_worker(&self) -> Result<()> {
        let settings = &self.options.config.worker;
        let guard = match &self.options.guard {
            Some((program, args)) => Some(Guard::start(program.clone(), args.clone()).await?),
            None => None,
        };
        let (config, store) = (&self.options.config, &self.connections.store);
        let backends = crate::execution::backends(config, store, &self.policies, guard.clone()).await?;
        if self.policies.allow(BackendKind::Local) {
            check_restrictions(&backends, crate::execution::hardening(config)).await?;
        }
        let engine = Engine {
            store: Arc::clone(&self.connections.store),
            transport: Arc::clone(&self.connections.transport),
            dispatcher: self.connections.dispatcher.clone(),
            tools: self.tools.clone(),
            backends,
            placement: Arc::new(Placement::new(
                Arc::clone(&self.policies),
                workspace_roots(config, self.options.mode),
            )),
            agents: Arc::new(crate::agents::runtime(config, self.options.mode)?),
        };
        let options = WorkerOptions {
            host: host_name(),
            version: self.options.version.clone(),
            pool: settings.pool.parse()?,
            slots: settings.slots,
            lease: settings.lease,
            heartbeat: settings.heartbeat,
            drain_deadline: settings.drain_deadline,
            max_consecutive_runs: settings.turn,
        };
        self.tasks.spawn(Worker::new(options, engine, guard).run(self.stop.clone()));
        Ok(())
    }
}

/// Logs which restrictions the local backend enforces. Fails if required ones cannot be enforced.
async fn check_restrictions(backends: &Backends, hardening: Hardening) -> Result<()> {
    let features = backends.get(BackendKind::Local)?.describe().await;
    let named = |state: FeatureState| {
        let of = features.iter().filter(move |it| it.state == state);
        of.map(|feature| feature.name).collect::<Vec<_>>().join(", ")
    };
    tracing::info!(
        enforced = named(FeatureState::Enforced),
        partial = named(FeatureState::Partial),
        off = named(FeatureState::Off),
        unavailable = named(FeatureState::Unavailable),
        "local backend restrictions"
    );
    for feature in features.iter().filter(|it| matches!(it.name, "confinement" | "worker protection")) {
        match feature.state {
            FeatureState::Enforced => {}
            _ if hardening == Hardening::Required => {
                return Err(Error::unavailable(feature.detail.clone()).at("sandbox.hardening"));
            }
            FeatureState::Off if !nix::unistd::geteuid().is_root() => {}
            FeatureState::Off | FeatureState::Partial | FeatureState::Unavailable => {
                tracing::warn!(feature = feature.name, detail = feature.detail, "commands are not confined");
            }
        }
    }
    Ok(())
}

/// A configured number of bytes.
fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn host_name() -> String {
    nix::unistd::gethostname()
        .map_or_else(|_| "unknown".to_owned(), |name| name.to_string_lossy().into_owned())
}
