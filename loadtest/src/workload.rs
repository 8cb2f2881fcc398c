//! The workload of the fault tests: clients that submit and cancel, readers that follow, and a record of both.
//!
//! Every submit has its own idempotency key and is retried, from server to server, until it is accepted, refused or timed out.
//! What a run does depends only on the seed and its number. Its session and its time depend on how fast answers come, as with
//! real clients.

mod client;
mod failover;
mod final_state;
mod reader;
mod run_plan;
mod session_tracker;

use std::{
    path::PathBuf,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use anyhow::Context as _;
use clap::Args;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use parking_lot::{Mutex, MutexGuard};
use rand::Rng as _;
use remuda_domain::Code;
use remuda_proto::v1;
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{
    client::Driver,
    reader::{Reader, ReaderBehaviour},
    session_tracker::SessionTracker,
};
pub(crate) use self::{
    failover::{Addresses, CallError, FailoverClient, OperatorAccess},
    final_state::{replay, wait_until_idle},
    reader::{Goal, Subscriber, observe},
};
use crate::{
    observed_history::{Cancel, History, Micros, ReaderLog, Submit},
    processes::ProcessWatch,
    tool_journal::Journal,
};

/// How long the first calls may take: the servers have just been started.
const FIRST_CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// How long readers may take to reach the last event after the load.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(45);
/// One session in this many has more than one reader.
const MULTI_READER_SHARE: usize = 3;
/// One session in this many has runs that interrupt others.
const INTERRUPTING_SHARE: usize = 6;
const CALLS_AT_ONCE: usize = 16;

/// The size of the load.
#[derive(Clone, Debug, Args)]
pub(crate) struct LoadArgs {
    #[arg(long, default_value_t = 24)]
    sessions: usize,
    /// Clients that submit at the same time.
    #[arg(long, default_value_t = 8)]
    clients: usize,
    /// Submits per second of all clients together, if nothing holds them up.
    #[arg(long, default_value_t = 30, value_name = "PER_SECOND")]
    rate: u32,
    /// Build and test an optimised server, in the profile of this program. REMUDA_BIN names another binary.
    #[arg(long)]
    pub(crate) release: bool,
}

impl LoadArgs {
    pub(crate) fn options(&self, addresses: Addresses, seed: u64, journal: PathBuf) -> Options {
        let Self { sessions, clients, rate, .. } = *self;
        Options {
            addresses,
            seed,
            sessions: sessions.max(1),
            clients: clients.max(1),
            rate: rate.max(1),
            journal,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) addresses: Addresses,
    pub(crate) seed: u64,
    pub(crate) sessions: usize,
    /// Clients that submit at the same time.
    pub(crate) clients: usize,
    /// Submits per second of all clients together, if nothing holds them up.
    pub(crate) rate: u32,
    /// A directory that tools can write to, for the journal.
    pub(crate) journal: PathBuf,
}

/// A running workload.
#[derive(Debug)]
pub(crate) struct Workload {
    driver: Arc<Driver>,
    clients: TaskTracker,
    stop_clients: CancellationToken,
    readers: Vec<JoinHandle<ReaderLog>>,
    goals: Vec<watch::Sender<Option<i64>>>,
    processes: ProcessWatch,
    stop_processes: CancellationToken,
    watching: JoinHandle<()>,
}

/// What clients recorded.
#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) submits: Vec<Submit>,
    pub(crate) cancels: Vec<Cancel>,
}

/// The result of a workload.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) history: History,
    /// The times of failed attempts of any call.
    pub(crate) errors: Vec<Micros>,
}

impl Workload {
    /// Creates the sessions, starts their readers, and starts to submit.
    pub(crate) async fn start(options: Options) -> anyhow::Result<Self> {
        let failover = FailoverClient::connect(&options.addresses)?;
        let sessions =
            create_sessions(&failover, options.sessions, &format!("load-{:x}", options.seed)).await?;
        let interrupting = (options.sessions / INTERRUPTING_SHARE).max(1);
        let driver = Arc::new(Driver {
            addresses: options.addresses.clone(),
            failover,
            tracker: Arc::new(SessionTracker::new(sessions.len())),
            sessions,
            interrupting,
            journal: Journal::new(options.journal.clone())?,
            // The process id separates the tools of concurrent tests.
            key_prefix: format!("lt-{:x}-{:x}-", options.seed, std::process::id()),
            seed: options.seed,
            pause: Duration::from_secs_f64(options.clients as f64 / f64::from(options.rate)),
            numbers: AtomicU64::new(0),
            record: Mutex::default(),
        });
        let goals: Vec<_> = driver.sessions.iter().map(|_| watch::channel(None).0).collect();
        let readers = start_readers(&driver, &options, &goals)?;
        let processes = ProcessWatch::default();
        let stop_processes = CancellationToken::new();
        let watch = processes.clone().run(driver.key_prefix.clone(), stop_processes.clone());
        let watching = TaskTracker::new().spawn(watch);
        let (clients, stop_clients) = (TaskTracker::new(), CancellationToken::new());
        for client in 0..options.clients {
            let driver = Arc::clone(&driver);
            clients.spawn(driver.drive(client, clients.clone(), stop_clients.clone()));
        }
        Ok(Self { driver, clients, stop_clients, readers, goals, processes, stop_processes, watching })
    }

    /// The prefix of the keys of all runs.
    pub(crate) fn key_prefix(&self) -> &str {
        &self.driver.key_prefix
    }

    /// Stops the load, waits until all runs have ended, and collects the history. `timeout` limits the wait for the last run.
    pub(crate) async fn finish(self, timeout: Duration) -> anyhow::Result<Finished> {
        self.stop_clients.cancel();
        self.clients.close();
        self.clients.wait().await;
        let final_state = final_state::read_final_state(&self.driver, timeout).await?;
        for (goal, last) in self.goals.iter().zip(&final_state.last_cursors) {
            goal.send_replace(Some(*last));
        }
        let mut reader_logs = Vec::with_capacity(self.readers.len());
        for reader in self.readers {
            reader_logs.push(reader.await.context("a reader task panicked")?);
        }
        self.stop_processes.cancel();
        self.watching.await.context("the process scanner panicked")?;
        let record = std::mem::take(&mut *self.driver.record());
        let history = History {
            submits: record.submits,
            cancels: record.cancels,
            runs: final_state.runs,
            streams: final_state.streams,
            reader_logs,
            effects: self.driver.journal.read()?,
            processes: self.processes.lifetimes(),
        };
        Ok(Finished { history, errors: self.driver.failover.errors() })
    }
}

impl Driver {
    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock()
    }
}

/// Creates sessions whose names are this prefix and a number, and returns their ids.
pub(crate) async fn create_sessions(
    failover: &FailoverClient,
    count: usize,
    prefix: &str,
) -> anyhow::Result<Vec<Arc<str>>> {
    let created = stream::iter(0..count).map(|number| async move {
        let name = format!("{prefix}-{number}");
        let request = v1::CreateSessionRequest { name: name.clone(), ..v1::CreateSessionRequest::default() };
        let create = failover.call(FIRST_CALL_TIMEOUT, |client| {
            let request = request.clone();
            async move { client.create_session(request).await.map(|answer| answer.session) }
        });
        let session = match create.await {
            // An earlier attempt without an answer had succeeded.
            Err(failover::CallError::Refused(error)) if error.code() == Code::AlreadyExists => {
                let find = failover.call(FIRST_CALL_TIMEOUT, |client| {
                    let request = v1::GetSessionRequest { session: name.clone() };
                    async move { client.get_session(request).await.map(|answer| answer.session) }
                });
                find.await
            }
            created => created,
        };
        let session = session.map_err(failover::CallError::into_error).context("cannot create a session")?;
        anyhow::Ok(session.context("no session in the answer")?.id.into())
    });
    created.buffered(CALLS_AT_ONCE).try_collect().await
}

/// Starts a primary reader for every session, and for some sessions readers of every other behaviour that start later.
fn start_readers(
    driver: &Arc<Driver>,
    options: &Options,
    goals: &[watch::Sender<Option<i64>>],
) -> anyhow::Result<Vec<JoinHandle<ReaderLog>>> {
    let behaviours = |session: usize| {
        let more: &[ReaderBehaviour] = if session.is_multiple_of(MULTI_READER_SHARE) {
            &[ReaderBehaviour::Reconnecting, ReaderBehaviour::Reconnecting, ReaderBehaviour::Slow]
        } else {
            &[]
        };
        std::iter::once(ReaderBehaviour::Primary).chain(more.iter().copied())
    };
    let tasks = TaskTracker::new();
    let mut readers = Vec::new();
    for (session, id) in driver.sessions.iter().enumerate() {
        for behaviour in behaviours(session) {
            let mut rng = reader::rng(options.seed, readers.len());
            let delay = if behaviour == ReaderBehaviour::Primary { 0 } else { rng.random_range(0..10_000) };
            let log = ReaderLog {
                reader: format!("{behaviour:?} reader {}", readers.len()),
                session: Arc::clone(id),
                after: 0,
                events: Vec::new(),
                refused: Vec::new(),
            };
            let reader = Reader {
                behaviour,
                subscriber: Subscriber::new(&options.addresses)?,
                session,
                tracker: Arc::clone(&driver.tracker),
                goal: goals[session].subscribe(),
                delay: Duration::from_millis(delay),
                rng,
                log,
            };
            readers.push(tasks.spawn(reader.run(CATCH_UP_TIMEOUT)));
        }
    }
    Ok(readers)
}
