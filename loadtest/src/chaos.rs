//! `loadtest chaos`: a whole cluster under load while faults are injected one after the other.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::Args;
use futures::StreamExt as _;
use remuda_cluster::{
    Cluster, ClusterOptions, FaultKind, FaultRecord, FaultSchedule, HostileCounts, HostileMember,
    find_or_build_remuda,
};
use tokio::time::{Instant, sleep_until};

use crate::{
    observed_history::now,
    prerequisites,
    recovery::Fault,
    report::{FaultTest, ReportArgs},
    waiting_client::WaitingClient,
    workload::{Addresses, LoadArgs, OperatorAccess, Workload},
};

/// How long the last runs may take to end: leases and nak delays must expire first.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(180);

#[derive(Debug, Args)]
pub(crate) struct ChaosArgs {
    /// Duration of the load. Every kind of fault occurs at least once if the time allows: all need about 100 s.
    #[arg(long, default_value_t = 180)]
    seconds: u64,
    /// Seed of the runs and the faults.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Inject only these faults, separated by commas [default: all that this machine supports].
    #[arg(long, value_enum, value_delimiter = ',', value_name = "KIND,…")]
    faults: Vec<FaultKind>,
    /// Inject a second fault while one is active.
    #[arg(long)]
    overlap: bool,
    /// Leave out the hostile member of the bus, which forges, alters, replays and reorders messages of every subject.
    #[arg(long)]
    no_hostile: bool,
    /// The nats-server binary [default: the installed one].
    #[arg(long, value_name = "FILE")]
    nats: Option<PathBuf>,
    /// Lease of a worker's sessions. The product's default is 15 s; a shorter lease shows more takeovers.
    #[arg(long, default_value = "3s", value_parser = duration)]
    lease: Duration,
    /// Keep the logs of all processes even if the test passes.
    #[arg(long)]
    keep_logs: bool,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    report: ReportArgs,
}

pub(crate) async fn run(args: ChaosArgs) -> anyhow::Result<ExitCode> {
    let kinds = select_kinds(&args.faults)?;
    let release = args.load.release;
    let remuda = tokio::task::spawn_blocking(move || find_or_build_remuda(release)).await??;
    let nats = prerequisites::ensure_servers(args.nats.clone()).await?;
    let options = ClusterOptions {
        keep_logs: args.keep_logs,
        lease: args.lease,
        // In the same proportions as the product's defaults.
        heartbeat: args.lease / 5,
        reconciler_interval: args.lease / 3,
        small_disk: kinds.contains(&FaultKind::PostgresFull),
        ..ClusterOptions::new(remuda, nats)
    };
    let cluster = Cluster::start(options).await?;
    let directory = tempfile::Builder::new().prefix("remuda-chaos-").tempdir()?;
    let addresses = Addresses {
        control_planes: cluster.control_plane_endpoints(),
        streams: cluster.stream_endpoints(),
        api_key: Some(cluster.api_key().to_owned()),
        operator: Some(OperatorAccess::of(&cluster)),
    };
    let waiting = WaitingClient::start(&addresses)?;
    let workload =
        Workload::start(args.load.options(addresses, args.seed, directory.path().join("journal"))).await?;

    // Outside of every workspace.
    let hostile = match args.no_hostile {
        true => None,
        false => Some(HostileMember::start(&cluster, directory.path(), args.seed).await?),
    };

    let (begun, until) = (now(), Instant::now() + Duration::from_secs(args.seconds));
    let mut schedule = FaultSchedule::new(args.seed, &kinds, args.seconds);
    if args.overlap {
        schedule = schedule.with_overlap(args.seed, &kinds);
    }
    let injected: Vec<anyhow::Result<FaultRecord>> = schedule.inject(&cluster).collect().await;
    sleep_until(until).await;
    let load = begun..now();
    let answers = waiting.stop().await?;
    let finished = workload.finish(SETTLE_TIMEOUT).await.inspect_err(|_| cluster.mark_failed())?;
    // It has attacked until the last run ended.
    let (hostile, mut problems_seen) = match hostile {
        Some(hostile) => hostile.stop().await?,
        None => (HostileCounts::new(), Vec::new()),
    };

    problems_seen.extend(answers.problems);

    let mut test = FaultTest {
        name: "chaos",
        seed: args.seed,
        load,
        finished,
        faults: Vec::new(),
        problems: problems_seen,
        hostile,
        waited: answers.finished,
    };
    for record in injected {
        match record {
            Ok(record) => {
                let problem = |problem: &String| format!("{} of {}: {problem}", record.kind, record.target);
                test.problems.extend(record.problems.iter().map(problem));
                test.faults.push(fault(&record));
            }
            Err(error) => test.problems.push(format!("{error:#}")),
        }
    }
    test.faults.sort_by_key(|fault| fault.began);
    test.problems.extend(problems(&cluster));
    let code = test.report(&args.report)?;
    if code != ExitCode::SUCCESS {
        cluster.mark_failed();
    }
    Ok(code)
}

/// Unexpected deaths and panics in a cluster.
pub(crate) fn problems(cluster: &Cluster) -> Vec<String> {
    let deaths = cluster.unexpected_deaths();
    let deaths = deaths.iter().map(|death| format!("{} died: {}", death.member, death.status));
    let panics = cluster.panics();
    let panics = panics.iter().map(|panic| format!("{}: {}", panic.member, panic.line));
    deaths.chain(panics).collect()
}

fn duration(text: &str) -> Result<Duration, humantime::DurationError> {
    humantime::parse_duration(text)
}

/// The requested kinds, or all kinds that this machine supports.
fn select_kinds(requested: &[FaultKind]) -> anyhow::Result<Vec<FaultKind>> {
    if requested.is_empty() {
        return Ok(FaultKind::all().iter().copied().filter(|kind| kind.check_available().is_ok()).collect());
    }
    for kind in requested {
        kind.check_available()?;
    }
    Ok(requested.to_vec())
}

fn fault(record: &FaultRecord) -> Fault {
    Fault {
        kind: record.kind.to_string(),
        target: format!("{} {}", record.target, record.note),
        began: record.began.timestamp_micros(),
        ended: record.ended.timestamp_micros(),
    }
}
