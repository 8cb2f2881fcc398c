//! A closed loop: each client submits a run, waits for its end, and goes on.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use hdrhistogram::Histogram;
use rand::Rng as _;
use remuda_client::{Client, ClientOptions};
use remuda_proto::v1;
use tokio_util::task::TaskTracker;

use crate::{
    check::{Verdict, check},
    history::{Answer, CallPlan, Expectation, FoundRun, History, Seen, Submit, now},
    workload::{Addresses, Subscriber, found_run, replay},
};

/// Connections that clients share: one HTTP/2 connection carries many calls, but not all of them.
const CONNECTIONS: usize = 8;
/// Sessions that are made, or whose histories are read back, at once.
const CALLS_AT_ONCE: usize = 32;

/// A server, connections to it, and sessions on it.
#[derive(Debug)]
pub(crate) struct ClosedLoop {
    addresses: Addresses,
    connections: Vec<Client>,
    sessions: Arc<Vec<String>>,
}

/// What the clients did.
#[derive(Debug)]
pub(crate) struct Driven {
    /// From the submit to the end at the client, in microseconds.
    pub(crate) latencies: Histogram<u64>,
    pub(crate) elapsed: Duration,
    submits: Vec<Submit>,
    runs: Vec<FoundRun>,
}

impl Driven {
    fn new() -> anyhow::Result<Self> {
        let (latencies, elapsed) = (Histogram::new(3)?, Duration::ZERO);
        Ok(Self { latencies, elapsed, submits: Vec::new(), runs: Vec::new() })
    }

    /// Takes over what another one did at the same time, or in another turn.
    pub(crate) fn add(&mut self, other: Self) -> anyhow::Result<()> {
        self.latencies.add(other.latencies)?;
        self.elapsed += other.elapsed;
        self.submits.extend(other.submits);
        self.runs.extend(other.runs);
        Ok(())
    }

    pub(crate) fn runs_per_second(&self) -> f64 {
        self.latencies.len() as f64 / self.elapsed.as_secs_f64()
    }

    pub(crate) fn millis(&self, quantile: f64) -> f64 {
        self.latencies.value_at_quantile(quantile) as f64 / 1000.0
    }
}

impl ClosedLoop {
    pub(crate) async fn new(addresses: Addresses, sessions: usize) -> anyhow::Result<Self> {
        let endpoint = addresses.control_planes.first().context("there is no control plane")?;
        let connect = |_| {
            let options = ClientOptions {
                endpoint: endpoint.clone(),
                api_key: addresses.api_key.clone().map(Into::into),
                ..ClientOptions::default()
            };
            Ok(Client::connect(options)?)
        };
        let connections: Vec<Client> = (0..CONNECTIONS).map(connect).collect::<anyhow::Result<_>>()?;
        let sessions = Arc::new(create_sessions(&connections, sessions).await?);
        Ok(Self { addresses, connections, sessions })
    }

    /// Drives so many clients for so long.
    pub(crate) async fn drive(&self, clients: usize, time: Duration) -> anyhow::Result<Driven> {
        let begun = Instant::now();
        let tasks = TaskTracker::new();
        let clients: Vec<_> = (0..clients)
            .map(|number| {
                let client = self.connections[number % CONNECTIONS].clone();
                tasks.spawn(drive_one(client, Arc::clone(&self.sessions), begun + time))
            })
            .collect();
        let mut driven = Driven::new()?;
        for client in clients {
            driven.add(client.await??)?;
        }
        Ok(Driven { elapsed: begun.elapsed(), ..driven })
    }

    /// Whether everything that was promised was kept, as clients and the sessions' own streams see it.
    pub(crate) async fn check(&self, driven: Driven) -> anyhow::Result<Verdict> {
        let subscriber = Subscriber::new(&self.addresses)?;
        let streams = stream::iter(self.sessions.iter())
            .map(|session| read_back(&self.connections[0], &subscriber, session))
            .buffer_unordered(CALLS_AT_ONCE)
            .try_collect()
            .await?;
        let Driven { submits, runs, .. } = driven;
        Ok(check(&History { submits, runs, streams, ..History::default() }))
    }
}

async fn create_sessions(connections: &[Client], count: usize) -> anyhow::Result<Vec<String>> {
    let created = stream::iter(0..count).map(|number| {
        let client = connections[number % connections.len()].clone();
        async move {
            let response = client.create_session(v1::CreateSessionRequest::default()).await?;
            anyhow::Ok(response.session.context("no session in the answer")?.id)
        }
    });
    created.buffered(CALLS_AT_ONCE).try_collect().await
}

/// One client's life: submit, wait for the end, repeat.
async fn drive_one(client: Client, sessions: Arc<Vec<String>>, until: Instant) -> anyhow::Result<Driven> {
    let mut driven = Driven::new()?;
    while Instant::now() < until {
        let session = &sessions[rand::rng().random_range(0..sessions.len())];
        let (begun, sent) = (Instant::now(), now());
        let run = client.submit(noop(session)).await?.run.context("no run in the answer")?;
        let answered = now();
        let ended = client.wait_until_finished(&run.id).await?;
        driven.latencies.record(u64::try_from(begun.elapsed().as_micros())?)?;
        driven.submits.push(Submit {
            // Submits without a key are told apart by their runs.
            key: run.id.clone(),
            session: session.as_str().into(),
            sent,
            answered,
            answer: Answer::Accepted { run: run.id.as_str().into() },
            calls: vec![CallPlan::default()],
            expects: Expectation::default(),
        });
        driven.runs.push(FoundRun { key: run.id, ..found_run(&ended)? });
    }
    Ok(driven)
}

fn noop(session: &str) -> v1::SubmitRunRequest {
    let call = v1::ToolCall { tool: "noop".to_owned(), ..v1::ToolCall::default() };
    let input = v1::ToolsInput { calls: vec![call], ..v1::ToolsInput::default() };
    v1::SubmitRunRequest {
        session: session.to_owned(),
        input: Some(v1::submit_run_request::Input::Tools(input)),
        ..v1::SubmitRunRequest::default()
    }
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
