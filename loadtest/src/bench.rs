//! `loadtest bench`.

use std::{
    collections::HashMap,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use clap::Args;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use hdrhistogram::Histogram;
use rand::Rng as _;
use remuda_client::Client;
use remuda_proto::v1;
use tokio_util::task::TaskTracker;

use crate::{
    check::{Violations, check_session},
    target::Target,
};

/// Connections that clients share: one HTTP/2 connection carries many calls, but not all of them.
const CONNECTIONS: usize = 8;
/// Sessions whose histories are read back at once.
const CHECKS_AT_ONCE: usize = 32;

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// A server that runs already. Without it an embedded one is started in this process.
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,
    #[arg(long, env = "REMUDA_API_KEY", hide_env_values = true, value_name = "KEY")]
    api_key: Option<String>,
    /// Clients that submit and wait at the same time.
    #[arg(long, default_value_t = 64)]
    clients: usize,
    #[arg(long, default_value_t = 256)]
    sessions: usize,
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Slots of the embedded worker.
    #[arg(long, default_value_t = 64)]
    slots: u32,
    /// One line of JSON.
    #[arg(long)]
    json: bool,
}

/// What one client did.
struct Record {
    latencies: Histogram<u64>,
    /// Runs by session, in the order in which they were submitted.
    runs: Vec<(usize, i64, String)>,
}

pub(crate) async fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    let target = match args.endpoint.clone() {
        Some(endpoint) => Target::existing(endpoint, args.api_key.clone()),
        None => Target::embedded(args.slots).await?,
    };
    let connections: Vec<Client> =
        (0..CONNECTIONS).map(|_| target.client()).collect::<anyhow::Result<_>>()?;
    let sessions = create_sessions(&connections, args.sessions).await?;

    let begun = Instant::now();
    let until = begun + Duration::from_secs(args.seconds);
    let tasks = TaskTracker::new();
    let clients: Vec<_> = (0..args.clients)
        .map(|number| {
            let (client, sessions) = (connections[number % CONNECTIONS].clone(), sessions.clone());
            tasks.spawn(drive(client, sessions, until))
        })
        .collect();
    let mut latencies = Histogram::<u64>::new(3)?;
    let mut by_session: HashMap<usize, Vec<(i64, String)>> = HashMap::new();
    for client in clients {
        let record = client.await??;
        latencies.add(record.latencies)?;
        for (session, seq, run) in record.runs {
            by_session.entry(session).or_default().push((seq, run));
        }
    }
    let elapsed = begun.elapsed();
    let violations = check_all(&connections[0], &sessions, by_session).await?;
    target.stop().await?;
    Ok(report(&args, &latencies, elapsed, &violations))
}

async fn create_sessions(connections: &[Client], count: usize) -> anyhow::Result<Vec<String>> {
    let created = stream::iter(0..count).map(|number| {
        let client = connections[number % connections.len()].clone();
        async move {
            let response = client.create_session(v1::CreateSessionRequest::default()).await?;
            anyhow::Ok(response.session.context("no session in the answer")?.id)
        }
    });
    created.buffered(64).try_collect().await
}

/// One client's life: submit, wait for the end, repeat.
async fn drive(client: Client, sessions: Vec<String>, until: Instant) -> anyhow::Result<Record> {
    let mut record = Record { latencies: Histogram::new(3)?, runs: Vec::new() };
    while Instant::now() < until {
        let session = rand::rng().random_range(0..sessions.len());
        let begun = Instant::now();
        let call = v1::ToolCall { tool: "noop".to_owned(), ..v1::ToolCall::default() };
        let input = v1::ToolsInput { calls: vec![call], ..v1::ToolsInput::default() };
        let request = v1::SubmitRunRequest {
            session: sessions[session].clone(),
            input: Some(v1::submit_run_request::Input::Tools(input)),
            ..v1::SubmitRunRequest::default()
        };
        let run = client.submit(request).await?.run.context("no run in the answer")?;
        let ended = client.wait_until_finished(&run.id).await?;
        anyhow::ensure!(ended.state() == v1::RunState::Completed, "a noop run ended as {:?}", ended.state());
        record.latencies.record(u64::try_from(begun.elapsed().as_micros())?)?;
        record.runs.push((session, run.seq, run.id));
    }
    Ok(record)
}

async fn check_all(
    client: &Client,
    sessions: &[String],
    by_session: HashMap<usize, Vec<(i64, String)>>,
) -> anyhow::Result<Violations> {
    let checks = stream::iter(by_session).map(|(session, mut runs)| {
        runs.sort_unstable();
        let runs: Vec<String> = runs.into_iter().map(|(_, run)| run).collect();
        async move { check_session(client, &sessions[session], &runs).await }
    });
    let found: Vec<Violations> = checks.buffer_unordered(CHECKS_AT_ONCE).try_collect().await?;
    Ok(found.into_iter().fold(Violations::default(), |sum, one| Violations {
        lost: sum.lost + one.lost,
        order: sum.order + one.order,
        cursor_holes: sum.cursor_holes + one.cursor_holes,
        terminal_events: sum.terminal_events + one.terminal_events,
    }))
}

#[expect(clippy::print_stdout, reason = "the report is what this program is for")]
fn report(
    args: &BenchArgs,
    latencies: &Histogram<u64>,
    elapsed: Duration,
    violations: &Violations,
) -> ExitCode {
    let runs = latencies.len();
    let rate = runs as f64 / elapsed.as_secs_f64();
    let millis = |quantile: f64| latencies.value_at_quantile(quantile) as f64 / 1000.0;
    if args.json {
        let line = serde_json::json!({
            "scenario": "noop",
            "runs": runs,
            "runs_per_s": rate,
            "p50_ms": millis(0.5),
            "p99_ms": millis(0.99),
            "violations": violations.total(),
        });
        println!("{line}");
    } else {
        println!("{runs} runs in {elapsed:.1?} by {} clients over {} sessions", args.clients, args.sessions);
        println!("{rate:.0} runs/s, submit to end: p50 {:.1} ms, p99 {:.1} ms", millis(0.5), millis(0.99));
        println!("violations: {violations:?}");
    }
    if violations.total() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
