//! A group of readers on a set of sessions, and their results.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, timeout},
};
use tokio_util::task::TaskTracker;

use super::{
    connection::StreamServers,
    follower::{Follower, FollowerResult, OpenCounter},
};
use crate::{
    deployment::Deployment,
    observed_history::History,
    workload::{Addresses, FailoverClient, Goal, Subscriber, create_sessions, replay, wait_until_idle},
};

/// How long all readers together may take to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(120);
/// How long the last runs may take to end.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);
/// How long readers may take to reach the last event after the load.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(60);
const CALLS_AT_ONCE: usize = 16;

pub(super) struct ReaderGroup {
    pub(super) failover: FailoverClient,
    pub(super) sessions: Vec<Arc<str>>,
    addresses: Addresses,
    servers: Arc<StreamServers>,
    goals: Vec<watch::Sender<Option<i64>>>,
    opened: OpenCounter,
    readers: Vec<JoinHandle<FollowerResult>>,
    /// Readers created so far, started or not.
    made: usize,
}

/// What all readers received, and the stored events for comparison.
#[derive(Debug, Default)]
pub(super) struct ReaderResults {
    /// Only `streams` and `reader_logs` are filled.
    pub(super) history: History,
    pub(super) problems: Vec<String>,
    /// Accepted connections of all readers.
    pub(super) connections: u64,
    /// Bytes received by each reader, in the order of `reader_logs`.
    pub(super) bytes: Vec<u64>,
}

impl ReaderGroup {
    /// Creates the sessions, without readers.
    pub(super) async fn new(deployment: &Deployment, name: &str, sessions: usize) -> anyhow::Result<Self> {
        let addresses = deployment.addresses();
        let failover = FailoverClient::connect(&addresses)?;
        let sessions = create_sessions(&failover, sessions.max(1), name).await?;
        let goals = sessions.iter().map(|_| watch::channel(None).0).collect();
        Ok(Self {
            failover,
            sessions,
            servers: Arc::new(StreamServers::new(deployment.servers(), addresses.api_key.clone())),
            addresses,
            goals,
            opened: OpenCounter::new(),
            readers: Vec::new(),
            made: 0,
        })
    }

    /// Creates a reader that follows a session from its beginning.
    pub(super) fn follower(&mut self, session: usize) -> Follower {
        let number = self.made;
        self.made += 1;
        let goal: Goal = self.goals[session].subscribe();
        Follower::new(number, &self.servers, &self.sessions[session], goal, &self.opened)
    }

    pub(super) fn start(&mut self, follower: Follower) {
        self.readers.push(TaskTracker::new().spawn(follower.run(CATCH_UP_TIMEOUT)));
    }

    /// Starts this many readers, spread over all sessions.
    pub(super) fn start_many(&mut self, readers: usize) {
        for number in 0..readers {
            let follower = self.follower(number % self.sessions.len());
            self.start(follower);
        }
    }

    /// Waits until all started readers have connected.
    pub(super) async fn wait_until_connected(&self) -> anyhow::Result<()> {
        let readers = self.readers.len();
        let waited = timeout(CONNECT_TIMEOUT, self.opened.reach(readers)).await;
        waited.with_context(|| format!("only {} of {readers} readers connected", self.opened.count()))
    }

    /// Waits until no session has an unfinished run, and returns the last cursor of each.
    pub(super) async fn wait_until_idle(&self) -> anyhow::Result<Vec<i64>> {
        let deadline = Instant::now() + IDLE_TIMEOUT;
        let quiet =
            stream::iter(&self.sessions).map(|session| wait_until_idle(&self.failover, session, deadline));
        quiet.buffered(CALLS_AT_ONCE).try_collect().await
    }

    /// Waits until all runs have ended and all readers have caught up, and reads all events again over gRPC. The load must be
    /// over.
    pub(super) async fn finish(self) -> anyhow::Result<ReaderResults> {
        let last_cursors = self.wait_until_idle().await?;
        for (goal, last) in self.goals.iter().zip(&last_cursors) {
            goal.send_replace(Some(*last));
        }
        let mut results = ReaderResults::default();
        for reader in self.readers {
            results.add(reader.await.context("a reader task panicked")?);
        }
        let subscriber = Subscriber::new(&self.addresses)?;
        results.history.streams = stream::iter(self.sessions.iter().zip(&last_cursors))
            .map(|(session, last)| {
                let subscriber = &subscriber;
                async move { anyhow::Ok((Arc::clone(session), replay(subscriber, session, *last).await?)) }
            })
            .buffer_unordered(CALLS_AT_ONCE)
            .try_collect()
            .await?;
        Ok(results)
    }
}

impl ReaderResults {
    fn add(&mut self, result: FollowerResult) {
        let FollowerResult { log, problems, connections, bytes } = result;
        self.history.reader_logs.push(log);
        self.problems.extend(problems);
        self.connections += connections;
        self.bytes.push(bytes);
    }

    /// Takes out the log of this reader, to be checked separately. Its problems stay here.
    pub(super) fn split_off(&mut self, reader: &str) -> Self {
        let mut taken = Self::default();
        let index = self.history.reader_logs.iter().position(|log| log.reader == reader);
        if let Some(index) = index {
            let log = self.history.reader_logs.remove(index);
            taken.bytes.push(self.bytes.remove(index));
            if let Some(stream) = self.history.streams.get(&log.session) {
                taken.history.streams.insert(Arc::clone(&log.session), stream.clone());
            }
            taken.history.reader_logs.push(log);
        }
        taken
    }

    /// The number of deliveries to readers.
    pub(super) fn deliveries(&self) -> usize {
        self.history.reader_logs.iter().map(|log| log.events.len()).sum()
    }
}
