//! `loadtest crash`: kills the embedded server repeatedly under load, and fills its disk.

use std::{process::ExitCode, time::Duration};

use clap::Args;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use remuda_cluster::find_or_build_remuda;
use remuda_testkit::SmallDisk;
use tokio::time::{Instant, sleep};

use crate::{
    observed_history::now,
    processes::{ToolProcess, tool_processes},
    recovery::Fault,
    report::{FaultTest, ReportArgs},
    server::Server,
    workload::{LoadArgs, Workload},
};

/// Duration of the load before the first kill and after the last, for comparison.
const LEAD_TIME: Duration = Duration::from_secs(6);
/// How long the last runs may take to end.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(90);
/// One kill in this many hits a server that is still starting.
const EARLY_KILLS: u32 = 4;
/// The disk is filled before one in this many kills. This needs root.
const KILLS_PER_FULL_DISK: u32 = 3;
/// Size of the disk, which takes as much memory as the database needs.
const DISK_BYTES: u64 = 1 << 30;
/// How long tools may outlive their server until the guard has killed them.
const TOOL_EXIT_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(crate) struct CrashArgs {
    /// Number of kills.
    #[arg(long, default_value_t = 50)]
    times: u32,
    /// Seed of the runs and the times of the kills.
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
    let files = directory.path().join("server");
    std::fs::create_dir_all(files.join("data"))?;
    let disk = match SmallDisk::is_available() {
        true => Some(SmallDisk::mount_at(&files.join("data"), DISK_BYTES)?),
        false => None,
    };
    let workspaces = ("REMUDA_WORKSPACES__ROOT".to_owned(), files.join("workspaces").display().to_string());
    let mut server = Server::new(program, &files, vec![workspaces])?;
    server.start()?;
    server.wait_until_ready().await?;

    let options = args.load.options(server.addresses(), args.seed, directory.path().join("journal"));
    let workload = Workload::start(options).await?;
    let load_began = now();
    sleep(LEAD_TIME).await;
    let mut killer = Killer {
        rng: StdRng::seed_from_u64(args.seed),
        key_prefix: workload.key_prefix().to_owned(),
        faults: Vec::new(),
        problems: Vec::new(),
    };
    for time in 0..args.times {
        if let Some(disk) = disk.as_ref().filter(|_| time % KILLS_PER_FULL_DISK == 0) {
            killer.fill(disk, &mut server).await?;
        }
        killer.kill(&mut server).await?;
    }
    sleep(LEAD_TIME).await;
    let load = load_began..now();
    let finished = workload.finish(SETTLE_TIMEOUT).await?;
    let Killer { faults, mut problems, .. } = killer;
    problems.extend(server.problems()?);
    FaultTest {
        name: "crash",
        seed: args.seed,
        load,
        finished,
        faults,
        problems,
        hostile: Default::default(),
        waited: 0,
    }
    .report(&args.report)
}

/// Kills the server, fills its disk, and checks that its tools die with it.
struct Killer {
    rng: StdRng,
    key_prefix: String,
    faults: Vec<Fault>,
    problems: Vec<String>,
}

impl Killer {
    /// Fills the disk of the server for some seconds. It must not end.
    async fn fill(&mut self, disk: &SmallDisk, server: &mut Server) -> anyhow::Result<()> {
        server.wait_until_ready().await?;
        let began = now();
        disk.fill()?;
        sleep(Duration::from_millis(self.rng.random_range(1000..6000))).await;
        disk.free()?;
        self.faults.push(Fault { kind: "disk-full".to_owned(), target: String::new(), began, ended: now() });
        Ok(())
    }

    /// Lets the server run for a random time, kills it, and starts it again.
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
        self.check_tools_died(tools).await;
        Ok(())
    }

    /// Checks that the guard kills the tools of the dead server.
    async fn check_tools_died(&mut self, mut tools: Vec<ToolProcess>) {
        let deadline = Instant::now() + TOOL_EXIT_TIMEOUT;
        while !tools.is_empty() && Instant::now() < deadline {
            let alive = tool_processes(&self.key_prefix);
            tools.retain(|tool| alive.contains(tool));
            sleep(Duration::from_millis(10)).await;
        }
        for ToolProcess { pid, key } in tools {
            self.problems
                .push(format!("process {pid} of {key} outlived its server by {TOOL_EXIT_TIMEOUT:?}"));
        }
    }
}
