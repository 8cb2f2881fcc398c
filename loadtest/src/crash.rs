//! `loadtest crash`: kills the embedded server again and again in the middle of its work.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{ExitCode, Stdio},
    time::Duration,
};

use anyhow::Context as _;
use clap::Args;
use nix::sys::signal::Signal;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use remuda_cluster::find_or_build_remuda;
use remuda_testkit::{Child, stable_port};
use tokio::time::{Instant, sleep, timeout};

use crate::{
    history::now,
    processes::{ToolProcess, tool_processes},
    recovery::Fault,
    report::{ReportArgs, Test},
    workload::{Addresses, LoadArgs, Workload},
};

/// How long a start may take. It replays what the last life left.
const START: Duration = Duration::from_secs(60);
/// Load before the first kill and after the last, to compare.
const QUIET: Duration = Duration::from_secs(6);
/// How long the last runs may take to end.
const SETTLE: Duration = Duration::from_secs(90);
/// One kill in this many comes before the server is up.
const EARLY_KILLS: u32 = 4;
/// How long tools may outlive their server: the guard needs a moment.
const DEAD_WITHIN: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(crate) struct CrashArgs {
    /// How often the server is killed.
    #[arg(long, default_value_t = 50)]
    times: u32,
    /// The same seed gives the same runs and the same moments of the kills.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    report: ReportArgs,
}

pub(crate) async fn run(args: CrashArgs) -> anyhow::Result<ExitCode> {
    let release = args.load.release;
    let program = tokio::task::spawn_blocking(move || find_or_build_remuda(release)).await??;
    let directory = tempfile::Builder::new().prefix("remuda-crash-").tempdir()?;
    let mut server = Server::new(program, directory.path())?;
    server.start()?;
    server.wait_until_ready().await?;

    let endpoint = format!("http://127.0.0.1:{}", server.port);
    let addresses =
        Addresses { control_planes: vec![endpoint.clone()], streams: vec![endpoint], api_key: None };
    let options = args.load.options(addresses, args.seed, directory.path().join("journal"));
    let workload = Workload::start(options).await?;
    let load_began = now();
    sleep(QUIET).await;
    let mut killer = Killer {
        rng: StdRng::seed_from_u64(args.seed),
        key_prefix: workload.key_prefix().to_owned(),
        faults: Vec::new(),
        troubles: Vec::new(),
    };
    for _ in 0..args.times {
        killer.kill(&mut server).await?;
    }
    sleep(QUIET).await;
    let load = load_began..now();
    let finished = workload.finish(SETTLE).await?;
    let Killer { faults, mut troubles, .. } = killer;
    troubles.extend(server.troubles()?);
    Test { name: "crash", seed: args.seed, load, finished, faults, troubles }.report(&args.report)
}

/// Ends lives of the server, and watches what becomes of its tools.
struct Killer {
    rng: StdRng,
    key_prefix: String,
    faults: Vec<Fault>,
    troubles: Vec<String>,
}

impl Killer {
    /// Lets the server live for a random time, kills it, and starts it again.
    async fn kill(&mut self, server: &mut Server) -> anyhow::Result<()> {
        let early = self.rng.random_ratio(1, EARLY_KILLS);
        if early {
            sleep(Duration::from_millis(self.rng.random_range(0..200))).await;
        } else {
            server.wait_until_ready().await?;
            sleep(Duration::from_millis(self.rng.random_range(200..1500))).await;
        }
        let tools = tool_processes(&self.key_prefix);
        let began = now();
        server.kill().await?;
        server.start()?;
        let target = if early { "while starting" } else { "" };
        self.faults.push(Fault { kind: "kill".to_owned(), target: target.to_owned(), began, ended: now() });
        self.watch_die(tools).await;
        Ok(())
    }

    /// The guard must have killed the tools of the dead server.
    async fn watch_die(&mut self, mut tools: Vec<ToolProcess>) {
        let deadline = Instant::now() + DEAD_WITHIN;
        while !tools.is_empty() && Instant::now() < deadline {
            let alive = tool_processes(&self.key_prefix);
            tools.retain(|tool| alive.contains(tool));
            sleep(Duration::from_millis(10)).await;
        }
        for ToolProcess { pid, key } in tools {
            self.troubles.push(format!("process {pid} of {key} outlived its server by {DEAD_WITHIN:?}"));
        }
    }
}

/// `remuda dev` on a fixed port, in one life after the other.
struct Server {
    program: PathBuf,
    directory: PathBuf,
    port: u16,
    life: u32,
    child: Option<Child>,
}

impl Server {
    fn new(program: PathBuf, directory: &Path) -> anyhow::Result<Self> {
        let port = stable_port().context("no free port")?;
        Ok(Self { program, directory: directory.to_owned(), port, life: 0, child: None })
    }

    fn log(&self, life: u32, name: &str) -> PathBuf {
        self.directory.join(format!("life-{life}.{name}"))
    }

    fn start(&mut self) -> anyhow::Result<()> {
        self.life += 1;
        let output = |name: &str| File::create(self.log(self.life, name));
        let (stdout, stderr) = (output("stdout")?, output("stderr")?);
        let child = Child::start(&self.program, None, |command| {
            command.args(["dev", "--json", "--listen", &format!("127.0.0.1:{}", self.port), "--data-dir"]);
            command.arg(self.directory.join("data")).env_clear();
            command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
            command.env("HOME", &self.directory).env("REMUDA_TELEMETRY__LOG", "warn");
            command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        })?;
        self.child = Some(child);
        Ok(())
    }

    /// Waits until this life serves.
    async fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let ready = async {
            loop {
                let said = fs::read_to_string(self.log(self.life, "stdout")).unwrap_or_default();
                if said.contains("\"ready\"") {
                    return Ok(());
                }
                self.ensure_alive()?;
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(START, ready).await.with_context(|| format!("the server is not ready after {START:?}"))?
    }

    /// An end that nobody asked for is a fault of the server.
    fn ensure_alive(&mut self) -> anyhow::Result<()> {
        let Some(status) = self.child.as_mut().and_then(Child::ended) else { return Ok(()) };
        let words = fs::read_to_string(self.log(self.life, "stderr")).unwrap_or_default();
        let last: Vec<&str> = words.lines().rev().take(20).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        anyhow::bail!("the server ended by itself in life {} ({status}):\n{}", self.life, last.join("\n"))
    }

    /// SIGKILL. Returns when the process is gone.
    async fn kill(&mut self) -> anyhow::Result<()> {
        self.ensure_alive()?;
        let Some(mut child) = self.child.take() else { return Ok(()) };
        child.signal(Signal::SIGKILL)?;
        while child.ended().is_none() {
            sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// Panics, in any life.
    fn troubles(&mut self) -> anyhow::Result<Vec<String>> {
        self.ensure_alive()?;
        let mut troubles = Vec::new();
        for life in 1..=self.life {
            let words = fs::read_to_string(self.log(life, "stderr"))?;
            let panics = words.lines().filter(|line| line.contains("panicked"));
            troubles.extend(panics.map(|line| format!("life {life} of the server: {line}")));
        }
        Ok(troubles)
    }
}
