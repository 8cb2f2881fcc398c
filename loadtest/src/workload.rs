//! Seeded load over real gRPC: clients that submit and cancel, readers that follow, and a record of both.
//!
//! Every submit has an idempotency key of its own and goes on, from server to server, until it is accepted, refused or out
//! of time. What a run does follows from the seed and its number; which session it goes to and when depends on how fast
//! answers come, as with real clients.

mod client;
mod fleet;
mod plan;
mod reader;
mod room;
mod settle;

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, atomic::AtomicU64},
    time::Duration,
};

use anyhow::Context as _;
use clap::Args;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use rand::Rng as _;
use remuda_domain::Code;
use remuda_proto::v1;
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{
    client::Driver,
    reader::{Habit, Reader},
    room::Rooms,
};
pub(crate) use self::{
    fleet::{Addresses, CallError, Fleet},
    reader::{Goal, Subscriber, seen},
    settle::{quiet, replay},
};
use crate::{
    history::{Cancel, History, Micros, Reading, Submit},
    journal::Journal,
    processes::ProcessWatch,
};

/// How long the first calls may take: the servers have just been started.
const START: Duration = Duration::from_secs(60);
/// How long readers may take to reach the end once nothing more happens.
const CATCH_UP: Duration = Duration::from_secs(45);
/// One session in this many has more readers than its witness.
const READ_SHARE: usize = 3;
/// One session in this many has runs that interrupt others.
const INTERRUPTING_SHARE: usize = 6;
const CALLS_AT_ONCE: usize = 16;

/// How much load, and on what.
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
    /// Build and test the release profile. REMUDA_BIN names another binary.
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
    /// A directory that tools can write to.
    pub(crate) journal: PathBuf,
}

/// Load that is under way.
#[derive(Debug)]
pub(crate) struct Workload {
    driver: Arc<Driver>,
    clients: TaskTracker,
    stop_clients: CancellationToken,
    readers: Vec<JoinHandle<Reading>>,
    goals: Vec<watch::Sender<Option<i64>>>,
    processes: ProcessWatch,
    stop_processes: CancellationToken,
    watching: JoinHandle<()>,
}

/// What clients wrote down.
#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) submits: Vec<Submit>,
    pub(crate) cancels: Vec<Cancel>,
}

/// The end of a workload.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) history: History,
    /// When attempts of any call failed.
    pub(crate) errors: Vec<Micros>,
}

impl Workload {
    /// Creates the sessions, starts their readers, and begins to submit.
    pub(crate) async fn start(options: Options) -> anyhow::Result<Self> {
        let fleet = Fleet::connect(&options.addresses)?;
        let sessions = create_sessions(&fleet, options.sessions, &format!("load-{:x}", options.seed)).await?;
        let interrupting = (options.sessions / INTERRUPTING_SHARE).max(1);
        let driver = Arc::new(Driver {
            addresses: options.addresses.clone(),
            fleet,
            rooms: Arc::new(Rooms::new(sessions.len())),
            sessions,
            interrupting,
            journal: Journal::new(options.journal.clone())?,
            // The process id keeps tools of tests that run at the same time apart.
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

    /// What the keys of all runs begin with.
    pub(crate) fn key_prefix(&self) -> &str {
        &self.driver.key_prefix
    }

    /// Stops the load, waits until all is quiet, and collects what happened. `patience` bounds the wait for the last run.
    pub(crate) async fn finish(self, patience: Duration) -> anyhow::Result<Finished> {
        self.stop_clients.cancel();
        self.clients.close();
        self.clients.wait().await;
        let settled = settle::settle(&self.driver, patience).await?;
        for (goal, last) in self.goals.iter().zip(&settled.last_cursors) {
            goal.send_replace(Some(*last));
        }
        let mut readings = Vec::with_capacity(self.readers.len());
        for reader in self.readers {
            readings.push(reader.await.context("a reader broke down")?);
        }
        self.stop_processes.cancel();
        self.watching.await.context("the watch over processes broke down")?;
        let record = std::mem::take(&mut *self.driver.record());
        let history = History {
            submits: record.submits,
            cancels: record.cancels,
            runs: settled.runs,
            streams: settled.streams,
            readings,
            effects: self.driver.journal.read()?,
            processes: self.processes.lifetimes(),
        };
        Ok(Finished { history, errors: self.driver.fleet.errors() })
    }
}

impl Driver {
    fn record(&self) -> std::sync::MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Their names are this prefix and a number.
pub(crate) async fn create_sessions(
    fleet: &Fleet,
    count: usize,
    prefix: &str,
) -> anyhow::Result<Vec<Arc<str>>> {
    let created = stream::iter(0..count).map(|number| async move {
        let name = format!("{prefix}-{number}");
        let request = v1::CreateSessionRequest { name: name.clone(), ..v1::CreateSessionRequest::default() };
        let create = fleet.call(START, |client| {
            let request = request.clone();
            async move { client.create_session(request).await.map(|answer| answer.session) }
        });
        let session = match create.await {
            // An attempt without an answer had succeeded.
            Err(fleet::CallError::Refused(error)) if error.code() == Code::AlreadyExists => {
                let find = fleet.call(START, |client| {
                    let request = v1::GetSessionRequest { session: name.clone() };
                    async move { client.get_session(request).await.map(|answer| answer.session) }
                });
                find.await
            }
            created => created,
        };
        let session = session.map_err(fleet::CallError::into_error).context("a session cannot be created")?;
        anyhow::Ok(session.context("no session in the answer")?.id.into())
    });
    created.buffered(CALLS_AT_ONCE).try_collect().await
}

/// A witness for every session, and for some of them readers of every habit that begin later.
fn start_readers(
    driver: &Arc<Driver>,
    options: &Options,
    goals: &[watch::Sender<Option<i64>>],
) -> anyhow::Result<Vec<JoinHandle<Reading>>> {
    let habits = |session: usize| {
        let more: &[Habit] = if session.is_multiple_of(READ_SHARE) {
            &[Habit::Restless, Habit::Restless, Habit::Slow]
        } else {
            &[]
        };
        std::iter::once(Habit::Witness).chain(more.iter().copied())
    };
    let tasks = TaskTracker::new();
    let mut readers = Vec::new();
    for (session, id) in driver.sessions.iter().enumerate() {
        for habit in habits(session) {
            let mut rng = reader::rng(options.seed, readers.len());
            let delay = if habit == Habit::Witness { 0 } else { rng.random_range(0..10_000) };
            let reading = Reading {
                reader: format!("{habit:?} reader {}", readers.len()),
                session: Arc::clone(id),
                after: 0,
                seen: Vec::new(),
                refused: Vec::new(),
            };
            let reader = Reader {
                habit,
                subscriber: Subscriber::new(&options.addresses)?,
                session,
                rooms: Arc::clone(&driver.rooms),
                goal: goals[session].subscribe(),
                delay: Duration::from_millis(delay),
                rng,
                reading,
            };
            readers.push(tasks.spawn(reader.run(CATCH_UP)));
        }
    }
    Ok(readers)
}
