//! The cluster as a whole.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::ExitStatus,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use remuda_testkit::{
    NatsServer, PostgresServer, Process, TcpProxy, process, processes_of, stable_port, still_alive,
    wait_until,
};

use crate::{
    admin::Admin,
    home::Home,
    member::{Launch, Member, Role},
    options::ClusterOptions,
    server::Server,
};

/// How long guards may take to kill what their dead workers left.
const GUARD_TIMEOUT: Duration = Duration::from_secs(5);
/// What a process may take beyond its drain deadline when the cluster is put to rest.
const REST_MARGIN: Duration = Duration::from_secs(15);

/// A process that ended although nobody had told it to.
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
    /// The line of its log.
    pub line: String,
}

/// PostgreSQL, NATS, and the processes that use them. Everything is gone when it is dropped.
#[derive(Debug)]
pub struct Cluster {
    control_planes: Vec<Member>,
    workers: Vec<Member>,
    streams: Vec<Member>,
    pub(crate) nats: Server<NatsServer>,
    pub(crate) postgres: Server<PostgresServer>,
    api_key: String,
    options: ClusterOptions,
    failed: AtomicBool,
    // Last: the others keep their files there.
    home: Home,
}

impl Cluster {
    /// Starts everything and returns when every process serves.
    ///
    /// The runtime it is called in also runs the proxies, so it has to be kept going while the cluster is used.
    pub async fn start(options: ClusterOptions) -> Result<Self> {
        ensure!(options.control_planes > 0, "a cluster needs a control plane");
        let home = Home::create()?;
        let data = home.directory("postgres")?;
        let postgres = Server::start(move || PostgresServer::start(&data), PostgresServer::address).await?;
        let (binary, data) = (options.nats.clone(), home.directory("nats")?);
        let nats = Server::start(move || NatsServer::start_in(&binary, &data), NatsServer::address).await?;
        let admin = Admin { options: &options, home: &home, database: database_url(postgres.address()) };
        admin.migrate().await?;
        let api_key = admin.create_key().await?;
        let mut cluster = Self {
            control_planes: Vec::new(),
            workers: Vec::new(),
            streams: Vec::new(),
            nats,
            postgres,
            api_key,
            options,
            failed: AtomicBool::new(false),
            home,
        };
        cluster.populate().await?;
        let started = try_join_all(cluster.members().map(Member::start)).await;
        if started.is_err() {
            cluster.mark_failed();
        }
        started.with_context(|| format!("logs are in {}", cluster.logs().display()))?;
        Ok(cluster)
    }

    /// Ends every process of Remuda in an orderly way. PostgreSQL and NATS stay, and nothing else uses them until
    /// [`Cluster::resume`].
    pub async fn rest(&self) -> Result<()> {
        let patience = self.options.drain_deadline + REST_MARGIN;
        let ends = self.members().map(|member| async move {
            let ended = member.end(Signal::SIGTERM, patience).await?;
            ended.map(drop).with_context(|| format!("{} did not end when told to", member.name()))
        });
        try_join_all(ends).await.map(drop)
    }

    /// Starts every process again after [`Cluster::rest`], and returns when all serve.
    pub async fn resume(&self) -> Result<()> {
        try_join_all(self.members().map(Member::start)).await.map(drop)
    }

    /// Makes the places, without processes yet.
    async fn populate(&mut self) -> Result<()> {
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
        variables.extend(match self.options.proxied {
            true => services(postgres.address(), nats.address()),
            false => services(self.postgres.address(), self.nats.address()),
        });
        let workspaces = self.home.directory("workspaces")?;
        variables.push(("REMUDA_WORKSPACES__ROOT".to_owned(), workspaces.display().to_string()));
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
        let directory = self.home.directory(&name)?;
        let log = self.home.logs().join(format!("{name}.log"));
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

    /// Where clients reach the control planes, also after restarts.
    #[must_use]
    pub fn control_plane_endpoints(&self) -> Vec<String> {
        endpoints(&self.control_planes)
    }

    /// Where clients reach the stream services, also after restarts.
    #[must_use]
    pub fn stream_endpoints(&self) -> Vec<String> {
        endpoints(&self.streams)
    }

    /// Of the tenant `acme`, for everything.
    #[must_use]
    pub fn api_key(&self) -> &str {
        &self.api_key
    }

    /// A superuser's URL of the database, past all proxies.
    #[must_use]
    pub fn postgres_url(&self) -> String {
        database_url(self.postgres.address())
    }

    /// The address of NATS, past all proxies.
    #[must_use]
    pub fn nats_url(&self) -> String {
        nats_url(self.nats.address())
    }

    /// Where the processes' logs are, while there is a cluster.
    #[must_use]
    pub fn logs(&self) -> PathBuf {
        self.home.logs()
    }

    /// A clock file for a process that is started under libfaketime.
    pub(crate) fn clock_file(&self, member: &Member) -> Result<PathBuf> {
        Ok(self.home.directory(member.name())?.join("clock"))
    }

    /// Every process of the cluster at this moment: servers, members, guards and tools.
    #[must_use]
    pub fn processes(&self) -> Vec<Process> {
        let servers = [self.postgres.lock().pid(), self.nats.lock().pid()];
        let of_servers =
            servers.into_iter().flat_map(|pid| process(pid).into_iter().chain(processes_of(pid)));
        of_servers.chain(self.members().flat_map(Member::processes)).collect()
    }

    /// Processes that ended although no fault had told them to. Looks at every process now.
    #[must_use]
    pub fn unexpected_deaths(&self) -> Vec<UnexpectedDeath> {
        let deaths = self.members().flat_map(|member| {
            let death = |status| UnexpectedDeath { member: member.name().to_owned(), status };
            member.unexpected_ends().into_iter().map(death)
        });
        deaths.collect()
    }

    /// Panics that processes reported, in all their lives.
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

    /// Keeps the logs: what was done with this cluster came to a bad end.
    pub fn mark_failed(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    fn wants_logs(&self) -> bool {
        self.options.keep_logs
            || self.failed.load(Ordering::Relaxed)
            || thread::panicking()
            || !self.unexpected_deaths().is_empty()
            || !self.panics().is_empty()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let keep = self.wants_logs();
        let started: Vec<Process> = self.members().flat_map(Member::processes).collect();
        for member in self.members() {
            if let Err(error) = member.kill_now() {
                tracing::warn!(
                    member = member.name(),
                    error = format!("{error:#}"),
                    "a process was not killed"
                );
            }
        }
        // Guards kill the tools; what they leave is a finding, but must not stay.
        if wait_until(GUARD_TIMEOUT, || still_alive(&started).is_empty().then_some(())).is_none() {
            for process in still_alive(&started) {
                tracing::warn!(
                    pid = process.pid,
                    command = process.cmdline,
                    "killing what outlived its worker"
                );
                let pid = i32::try_from(process.pid).map(Pid::from_raw);
                // Gone in between is gone too.
                pid.map(|pid| kill(pid, Signal::SIGKILL).ok()).ok();
            }
        }
        let stopped = [self.nats.lock().kill(), self.postgres.lock().stop()];
        for error in stopped.into_iter().filter_map(Result::err) {
            tracing::warn!(error = format!("{error:#}"), "a server was not stopped");
        }
        if !keep {
            return;
        }
        let directory = |name: &str, log: &str| self.home.directory(name).map(|path| path.join(log));
        let servers =
            [("postgres.log", directory("postgres", "postgres.log")), ("nats.log", directory("nats", "log"))];
        let servers: Vec<(&str, PathBuf)> =
            servers.into_iter().filter_map(|(name, path)| Some((name, path.ok()?))).collect();
        let kept = self.home.keep_logs(&servers);
        tell(&match kept {
            Ok(()) => format!("logs of the cluster are kept in {}", self.home.logs().display()),
            Err(error) => format!("logs of the cluster could not be kept: {error}"),
        });
    }
}

/// Said where a failed test is looked at; `Drop` has no other way out.
fn tell(message: &str) {
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

fn nats_url(address: SocketAddr) -> String {
    format!("nats://{address}")
}

/// The settings that name the services.
fn services(postgres: SocketAddr, nats: SocketAddr) -> Vec<(String, String)> {
    vec![
        ("REMUDA_STORE__URL".to_owned(), database_url(postgres)),
        ("REMUDA_NATS__SERVERS".to_owned(), nats_url(nats)),
    ]
}
