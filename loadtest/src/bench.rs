//! `loadtest bench`.

use std::{
    process::ExitCode,
    sync::Arc,
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
    check::{Verdict, check},
    history::{Answer, CallPlan, Expectation, FoundRun, History, Seen, Submit, now},
    target::Target,
    workload::{Subscriber, found_run, replay},
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
    submits: Vec<Submit>,
    runs: Vec<FoundRun>,
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
    let mut history = History::default();
    for client in clients {
        let record = client.await??;
        latencies.add(record.latencies)?;
        history.submits.extend(record.submits);
        history.runs.extend(record.runs);
    }
    let elapsed = begun.elapsed();
    let subscriber = Subscriber::new(&target.addresses())?;
    history.streams = stream::iter(&sessions)
        .map(|session| read_back(&connections[0], &subscriber, session))
        .buffer_unordered(CHECKS_AT_ONCE)
        .try_collect()
        .await?;
    target.stop().await?;
    Ok(report(&args, &latencies, elapsed, &check(&history)))
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
    let mut record = Record { latencies: Histogram::new(3)?, submits: Vec::new(), runs: Vec::new() };
    while Instant::now() < until {
        let session = &sessions[rand::rng().random_range(0..sessions.len())];
        let (begun, sent) = (Instant::now(), now());
        let call = v1::ToolCall { tool: "noop".to_owned(), ..v1::ToolCall::default() };
        let input = v1::ToolsInput { calls: vec![call], ..v1::ToolsInput::default() };
        let request = v1::SubmitRunRequest {
            session: session.clone(),
            input: Some(v1::submit_run_request::Input::Tools(input)),
            ..v1::SubmitRunRequest::default()
        };
        let run = client.submit(request).await?.run.context("no run in the answer")?;
        let answered = now();
        let ended = client.wait_until_finished(&run.id).await?;
        record.latencies.record(u64::try_from(begun.elapsed().as_micros())?)?;
        record.submits.push(Submit {
            // Submits without a key are told apart by their runs.
            key: run.id.clone(),
            session: session.as_str().into(),
            sent,
            answered,
            answer: Answer::Accepted { run: run.id.as_str().into() },
            calls: vec![CallPlan::default()],
            expects: Expectation::default(),
        });
        record.runs.push(FoundRun { key: run.id, ..found_run(&ended)? });
    }
    Ok(record)
}

/// A session's whole event stream.
async fn read_back(
    client: &Client,
    subscriber: &Subscriber,
    session: &str,
) -> anyhow::Result<(Arc<str>, Vec<Seen>)> {
    let request = v1::GetSessionRequest { session: session.to_owned() };
    let last = client.get_session(request).await?.session.map_or(0, |session| session.last_cursor);
    Ok((session.into(), replay(subscriber, session, last).await?))
}

#[expect(clippy::print_stdout, reason = "the report is what this program is for")]
fn report(args: &BenchArgs, latencies: &Histogram<u64>, elapsed: Duration, verdict: &Verdict) -> ExitCode {
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
            "violations": verdict.total(),
        });
        println!("{line}");
    } else {
        println!("{runs} runs in {elapsed:.1?} by {} clients over {} sessions", args.clients, args.sessions);
        println!("{rate:.0} runs/s, submit to end: p50 {:.1} ms, p99 {:.1} ms", millis(0.5), millis(0.99));
        println!("violations: {}", verdict.total());
        verdict.sentences().iter().for_each(|sentence| println!("  {sentence}"));
    }
    if verdict.total() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
