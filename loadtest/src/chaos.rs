//! `loadtest chaos`: a whole cluster under load, with one fault after the other.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::Args;
use futures::StreamExt as _;
use remuda_cluster::{Cluster, ClusterOptions, FaultKind, FaultRecord, FaultSchedule, find_or_build_remuda};
use tokio::time::{Instant, sleep_until};

use crate::{
    history::now,
    needs,
    recovery::Fault,
    report::{ReportArgs, Test},
    workload::{Addresses, LoadArgs, Workload},
};

/// How long the last runs may take to end. Leases and naks have to run out first.
const SETTLE: Duration = Duration::from_secs(180);

#[derive(Debug, Args)]
pub(crate) struct ChaosArgs {
    /// How long to drive load. Each kind of fault comes at least once if the time allows: about 100 s for all.
    #[arg(long, default_value_t = 180)]
    seconds: u64,
    /// The same seed gives the same runs and the same faults.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only these faults, separated by commas. All that this machine can do if missing.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "KIND,…")]
    faults: Vec<FaultKind>,
    /// Let a second fault come while one is under way.
    #[arg(long)]
    overlap: bool,
    /// The nats-server binary. The installed one if missing.
    #[arg(long, value_name = "FILE")]
    nats: Option<PathBuf>,
    /// How long a lost worker keeps its sessions. The product's default is 15 s; shorter shows more takeovers.
    #[arg(long, default_value = "3s", value_parser = duration)]
    lease: Duration,
    /// Keep the logs of all processes, also when everything went well.
    #[arg(long)]
    keep_logs: bool,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    report: ReportArgs,
}

pub(crate) async fn run(args: ChaosArgs) -> anyhow::Result<ExitCode> {
    let kinds = kinds(&args.faults)?;
    let release = args.load.release;
    let remuda = tokio::task::spawn_blocking(move || find_or_build_remuda(release)).await??;
    let nats = needs::servers(args.nats.clone()).await?;
    let options = ClusterOptions {
        keep_logs: args.keep_logs,
        lease: args.lease,
        // In the proportions of the product's defaults.
        heartbeat: args.lease / 5,
        reconciler_interval: args.lease / 3,
        ..ClusterOptions::new(remuda, nats)
    };
    let cluster = Cluster::start(options).await?;
    let directory = tempfile::Builder::new().prefix("remuda-chaos-").tempdir()?;
    let addresses = Addresses {
        control_planes: cluster.control_plane_endpoints(),
        streams: cluster.stream_endpoints(),
        api_key: Some(cluster.api_key().to_owned()),
    };
    let workload =
        Workload::start(args.load.options(addresses, args.seed, directory.path().join("journal"))).await?;

    let (begun, until) = (now(), Instant::now() + Duration::from_secs(args.seconds));
    let mut schedule = FaultSchedule::new(args.seed, &kinds, args.seconds);
    if args.overlap {
        schedule = schedule.with_overlap(args.seed, &kinds);
    }
    let injected: Vec<anyhow::Result<FaultRecord>> = schedule.inject(&cluster).collect().await;
    sleep_until(until).await;
    let load = begun..now();
    let finished = workload.finish(SETTLE).await.inspect_err(|_| cluster.mark_failed())?;

    let mut test =
        Test { name: "chaos", seed: args.seed, load, finished, faults: Vec::new(), troubles: Vec::new() };
    for record in injected {
        match record {
            Ok(record) => {
                let problem = |problem: &String| format!("{} of {}: {problem}", record.kind, record.target);
                test.troubles.extend(record.problems.iter().map(problem));
                test.faults.push(fault(&record));
            }
            Err(error) => test.troubles.push(format!("{error:#}")),
        }
    }
    test.faults.sort_by_key(|fault| fault.began);
    test.troubles.extend(troubles(&cluster));
    let code = test.report(&args.report)?;
    if code != ExitCode::SUCCESS {
        cluster.mark_failed();
    }
    Ok(code)
}

/// What went wrong in a cluster although no fault ordered it.
pub(crate) fn troubles(cluster: &Cluster) -> Vec<String> {
    let deaths = cluster.unexpected_deaths();
    let deaths = deaths.iter().map(|death| format!("{} died: {}", death.member, death.status));
    let panics = cluster.panics();
    let panics = panics.iter().map(|panic| format!("{}: {}", panic.member, panic.line));
    deaths.chain(panics).collect()
}

fn duration(text: &str) -> Result<Duration, humantime::DurationError> {
    humantime::parse_duration(text)
}

/// What was asked for, or everything that can be done here.
fn kinds(asked: &[FaultKind]) -> anyhow::Result<Vec<FaultKind>> {
    if asked.is_empty() {
        return Ok(FaultKind::all().iter().copied().filter(|kind| kind.check_available().is_ok()).collect());
    }
    for kind in asked {
        kind.check_available()?;
    }
    Ok(asked.to_vec())
}

fn fault(record: &FaultRecord) -> Fault {
    Fault {
        kind: record.kind.to_string(),
        target: format!("{} {}", record.target, record.note),
        began: record.began.timestamp_micros(),
        ended: record.ended.timestamp_micros(),
    }
}
