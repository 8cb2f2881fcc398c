//! The cluster: its servers, its members, and their lifecycle.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::ExitStatus,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use async_nats::ConnectOptions;
use futures::future::try_join_all;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use remuda_testkit::{
    NatsServer, PostgresServer, Process, SmallDisk, TcpProxy, process, processes_of, stable_port,
    still_alive, wait_until,
};
use remuda_transport::{BusRole, NatsAuth};

use crate::{
    admin::{self, Admin},
    member::{Launch, Member, Role},
    options::ClusterOptions,
    server::Server,
    work_directory::{DISK, WorkDirectory},
};

/// The prefix of all names in NATS.
pub(crate) const PREFIX: &str = "remuda";
/// How long guards may take to kill the tools of dead workers.
const GUARD_TIMEOUT: Duration = Duration::from_secs(5);
/// How much longer than its drain deadline a process may take when the cluster is suspended.
const SUSPEND_MARGIN: Duration = Duration::from_secs(15);

/// Size of the disk of PostgreSQL's tables, which takes as much memory as they need.
const DISK_BYTES: u64 = 2 << 30;

/// A process that ended without being stopped by a fault or by the cluster.
#[derive(Clone, Debug)]
pub struct UnexpectedDeath {
    /// Such as `worker-1`.
    pub member: String,
    pub status: ExitStatus,
}

/// A panic that a process reported.
#[derive(Clone, Debug)]
pub struct Panic {
    /// Such as `worker-1`.
    pub member: String,
    /// The log line of the panic.
    pub line: String,
}

/// PostgreSQL, NATS, and the `remuda` processes. Dropping it kills all processes and removes all files.
#[derive(Debug)]
pub struct Cluster {
    control_planes: Vec<Member>,
    workers: Vec<Member>,
    streams: Vec<Member>,
    pub(crate) nats: Server<NatsServer>,
    /// The users of NATS, one per role.
    nats_auth: NatsAuth,
    pub(crate) postgres: Server<PostgresServer>,
    /// The disk of PostgreSQL's tables. Dropped after the server.
    pub(crate) disk: Option<SmallDisk>,
    api_key: String,
    operator_key: String,
    options: ClusterOptions,
    failed: AtomicBool,
    // Dropped last: the others keep their files there.
    work_directory: WorkDirectory,
}

impl Cluster {
    /// The tenant of [`Cluster::api_key`]. Its workspaces may lie beneath the directory for temporary files.
    pub const TENANT: &'static str = admin::TENANT;

    /// Starts everything and returns when every process serves.
    ///
    /// The current runtime also runs the proxies, so it must keep running while the cluster is used.
    pub async fn start(options: ClusterOptions) -> Result<Self> {
        ensure!(options.control_planes > 0, "a cluster needs a control plane");
        let work_directory = WorkDirectory::create()?;
        let data = work_directory.directory("postgres")?;
        let postgres = Server::start(move || PostgresServer::start(&data), PostgresServer::address).await?;
        let disk = match options.small_disk {
            true => {
                let disk = SmallDisk::mount_at(&work_directory.directory(DISK)?, DISK_BYTES)?;
                let tables = disk.directory("tables")?;
                postgres.with(move |server| server.keep_tables_in(&tables)).await?;
                Some(disk)
            }
            false => None,
        };
        let (binary, data) = (options.nats.clone(), work_directory.directory("nats")?);
        let nats_auth = NatsAuth::with_passwords(PREFIX)?;
        let accounts = nats_auth.server_config();
        let nats =
            Server::start(move || NatsServer::start_in_with(&binary, &data, &accounts), NatsServer::address)
                .await?;
        let admin = Admin {
            options: &options,
            work_directory: &work_directory,
            database: database_url(postgres.address()),
        };
        admin.migrate().await?;
        let api_key = admin.create_key().await?;
        let operator_key = admin.create_operator_key().await?;
        let mut cluster = Self {
            control_planes: Vec::new(),
            workers: Vec::new(),
            streams: Vec::new(),
            nats,
            nats_auth,
            postgres,
            disk,
            api_key,
            operator_key,
            options,
            failed: AtomicBool::new(false),
            work_directory,
        };
        cluster.create_members().await?;
        let started = try_join_all(cluster.members().map(Member::start)).await;
        if started.is_err() {
            cluster.mark_failed();
        }
        started.with_context(|| format!("logs are in {}", cluster.logs().display()))?;
        Ok(cluster)
    }

    /// Stops every `remuda` process gracefully. PostgreSQL and NATS keep running, unused until [`Cluster::resume`].
    pub async fn suspend(&self) -> Result<()> {
        let timeout = self.options.drain_deadline + SUSPEND_MARGIN;
        let ends = self.members().map(|member| async move {
            let ended = member.end(Signal::SIGTERM, timeout).await?;
            ended.map(drop).with_context(|| format!("{} did not stop after SIGTERM", member.name()))
        });
        try_join_all(ends).await.map(drop)
    }

    /// Starts every process again after [`Cluster::suspend`], and returns when all serve.
    pub async fn resume(&self) -> Result<()> {
        try_join_all(self.members().map(Member::start)).await.map(drop)
    }

    /// Creates the members without starting their processes.
    async fn create_members(&mut self) -> Result<()> {
        for index in 0..self.options.streams {
            let stream = self.member(Role::Stream, index, Vec::new()).await?;
            self.streams.push(stream);
        }
        for index in 0..self.options.control_planes {
            let streams = self.stream_endpoints();
            let variables = match streams.get(index % streams.len().max(1)) {
                Some(stream) => vec![("REMUDA_SERVER__STREAM_ENDPOINT".to_owned(), stream.clone())],
                None => Vec::new(),
            };
            let control_plane = self.member(Role::ControlPlane, index, variables).await?;
            self.control_planes.push(control_plane);
        }
        for index in 0..self.options.workers {
            let worker = self.member(Role::Worker, index, Vec::new()).await?;
            self.workers.push(worker);
        }
        Ok(())
    }

    async fn member(&self, role: Role, index: usize, more: Vec<(String, String)>) -> Result<Member> {
        let name = format!("{}-{index}", role.name());
        let postgres = TcpProxy::start(self.postgres.address()).await.context("cannot start a proxy")?;
        let nats = TcpProxy::start(self.nats.address()).await.context("cannot start a proxy")?;
        let mut variables = self.options.variables();
        let (database_address, nats_address) = match self.options.proxied {
            true => (postgres.address(), nats.address()),
            false => (self.postgres.address(), self.nats.address()),
        };
        variables.push(("REMUDA_STORE__URL".to_owned(), database_url(database_address)));
        let nats_url = self.nats_auth.url(role.on_the_bus(), nats_address)?;
        variables.push(("REMUDA_NATS__SERVERS".to_owned(), nats_url));
        let workspaces = self.work_directory.directory("workspaces")?;
        variables.push(("REMUDA_WORKSPACES__ROOT".to_owned(), workspaces.display().to_string()));
        let allowed = std::env::temp_dir().display().to_string();
        variables.push(("REMUDA_WORKSPACES__ALLOWED".to_owned(), allowed));
        variables.extend(more);
        let mut arguments = vec![role.name().to_owned()];
        let address = match role {
            Role::Worker => None,
            Role::ControlPlane | Role::Stream => {
                let address = SocketAddr::from((Ipv4Addr::LOCALHOST, stable_port()?));
                arguments.extend(["--listen".to_owned(), address.to_string()]);
                Some(address)
            }
        };
        let directory = self.work_directory.directory(&name)?;
        let log = self.work_directory.logs().join(format!("{name}.log"));
        let launch = Launch::new(&self.options, arguments, variables, directory, log);
        Ok(Member::new(name, address, postgres, nats, launch))
    }

    #[must_use]
    pub fn options(&self) -> &ClusterOptions {
        &self.options
    }

    #[must_use]
    pub fn control_planes(&self) -> &[Member] {
        &self.control_planes
    }

    #[must_use]
    pub fn workers(&self) -> &[Member] {
        &self.workers
    }

    #[must_use]
    pub fn streams(&self) -> &[Member] {
        &self.streams
    }

    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.control_planes.iter().chain(&self.workers).chain(&self.streams)
    }

    /// The URLs of the control planes, which stay the same over restarts.
    #[must_use]
    pub fn control_plane_endpoints(&self) -> Vec<String> {
        endpoints(&self.control_planes)
    }

    /// The URLs of the stream services, which stay the same over restarts.
    #[must_use]
    pub fn stream_endpoints(&self) -> Vec<String> {
        endpoints(&self.streams)
    }

    /// An API key of the tenant [`TENANT`](Self::TENANT) with the scope `write`.
    #[must_use]
    pub fn api_key(&self) -> &str {
        &self.api_key
    }

    /// An API key with the scope `operator`.
    #[must_use]
    pub fn operator_key(&self) -> &str {
        &self.operator_key
    }

    /// A superuser's URL of the database, without a proxy.
    #[must_use]
    pub fn postgres_url(&self) -> String {
        database_url(self.postgres.address())
    }

    /// Connects to NATS as the administrator, without a proxy.
    pub async fn nats_client(&self) -> Result<async_nats::Client> {
        let (options, url) = self.nats_access()?;
        options.connect(url).await.context("cannot connect to NATS as the administrator")
    }

    /// The administrator's access to NATS, without a proxy.
    pub(crate) fn nats_access(&self) -> Result<(ConnectOptions, String)> {
        let (user, password) = self.nats_auth.password(BusRole::Admin)?;
        let url = format!("nats://{}", self.nats.address());
        Ok((ConnectOptions::with_user_and_password(user, password), url))
    }

    /// The directory of the processes' logs, while the cluster exists.
    #[must_use]
    pub fn logs(&self) -> PathBuf {
        self.work_directory.logs()
    }

    /// The clock file of a process under libfaketime.
    pub(crate) fn clock_file(&self, member: &Member) -> Result<PathBuf> {
        Ok(self.work_directory.directory(member.name())?.join("clock"))
    }

    /// All current processes of the cluster: servers, members, guards and tools.
    #[must_use]
    pub fn processes(&self) -> Vec<Process> {
        let servers = [self.postgres.lock().pid(), self.nats.lock().pid()];
        let of_servers =
            servers.into_iter().flat_map(|pid| process(pid).into_iter().chain(processes_of(pid)));
        of_servers.chain(self.members().flat_map(Member::processes)).collect()
    }

    /// Processes that ended unexpectedly so far.
    #[must_use]
    pub fn unexpected_deaths(&self) -> Vec<UnexpectedDeath> {
        let deaths = self.members().flat_map(|member| {
            let death = |status| UnexpectedDeath { member: member.name().to_owned(), status };
            member.unexpected_ends().into_iter().map(death)
        });
        deaths.collect()
    }

    /// Panics in the logs of all processes, including earlier ones of a member.
    #[must_use]
    pub fn panics(&self) -> Vec<Panic> {
        let mut panics = Vec::new();
        for member in self.members() {
            let log = member.log();
            let lines = log.lines().filter(|line| line.contains("panicked"));
            panics
                .extend(lines.map(|line| Panic { member: member.name().to_owned(), line: line.to_owned() }));
        }
        panics
    }

    /// Marks the test as failed, which keeps the logs.
    pub fn mark_failed(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    fn should_keep_logs(&self) -> bool {
        self.options.keep_logs
            || self.failed.load(Ordering::Relaxed)
            || thread::panicking()
            || !self.unexpected_deaths().is_empty()
            || !self.panics().is_empty()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let keep = self.should_keep_logs();
        let started: Vec<Process> = self.members().flat_map(Member::processes).collect();
        for member in self.members() {
            if let Err(error) = member.kill_now() {
                tracing::warn!(member = member.name(), error = format!("{error:#}"), "cannot kill a member");
            }
        }
        // Guards kill the tools. Tools that survive are a finding, but must not stay.
        if wait_until(GUARD_TIMEOUT, || still_alive(&started).is_empty().then_some(())).is_none() {
            for process in still_alive(&started) {
                tracing::warn!(
                    pid = process.pid,
                    command = process.cmdline,
                    "killing a process that outlived its worker"
                );
                let pid = i32::try_from(process.pid).map(Pid::from_raw);
                // It may have ended meanwhile.
                pid.map(|pid| kill(pid, Signal::SIGKILL).ok()).ok();
            }
        }
        let stopped = [self.nats.lock().kill(), self.postgres.lock().stop()];
        for error in stopped.into_iter().filter_map(Result::err) {
            tracing::warn!(error = format!("{error:#}"), "cannot stop a server");
        }
        if !keep {
            return;
        }
        let directory =
            |name: &str, log: &str| self.work_directory.directory(name).map(|path| path.join(log));
        let servers =
            [("postgres.log", directory("postgres", "postgres.log")), ("nats.log", directory("nats", "log"))];
        let servers: Vec<(&str, PathBuf)> =
            servers.into_iter().filter_map(|(name, path)| Some((name, path.ok()?))).collect();
        let kept = self.work_directory.keep_logs(&servers);
        print_notice(&match kept {
            Ok(()) => format!("logs of the cluster are kept in {}", self.work_directory.logs().display()),
            Err(error) => format!("logs of the cluster could not be kept: {error}"),
        });
    }
}

/// Prints to stderr, because `Drop` cannot return anything.
fn print_notice(message: &str) {
    #[expect(clippy::print_stderr, reason = "the place of the logs must be seen without a subscriber")]
    {
        eprintln!("{message}");
    }
}

fn endpoints(members: &[Member]) -> Vec<String> {
    members.iter().filter_map(Member::address).map(|address| format!("http://{address}")).collect()
}

fn database_url(address: SocketAddr) -> String {
    format!("postgres://postgres@{address}/postgres")
}
