//! Sessions, those who follow them, and at the end what all of them saw.

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
    connection::Places,
    follower::{Followed, Follower, Opened},
};
use crate::{
    history::History,
    stage::Stage,
    workload::{Addresses, Fleet, Goal, Subscriber, create_sessions, quiet, replay},
};

/// How long all readers together may take to be let in.
const LET_IN: Duration = Duration::from_secs(120);
/// How long the last runs may take to end.
const SETTLE: Duration = Duration::from_secs(120);
/// How long readers may take to reach the end once nothing more happens.
const CATCH_UP: Duration = Duration::from_secs(60);
const CALLS_AT_ONCE: usize = 16;

pub(super) struct Audience {
    pub(super) fleet: Fleet,
    pub(super) sessions: Vec<Arc<str>>,
    addresses: Addresses,
    places: Arc<Places>,
    goals: Vec<watch::Sender<Option<i64>>>,
    opened: Opened,
    readers: Vec<JoinHandle<Followed>>,
    /// Readers that were made, spawned or not.
    made: usize,
}

/// What everybody saw, and beside it what the store has.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// Only streams and readings.
    pub(super) history: History,
    pub(super) complaints: Vec<String>,
    /// Connections of all readers on which a server began to tell.
    pub(super) connections: u64,
    /// Bytes that each reader got, in the order of the readings.
    pub(super) bytes: Vec<u64>,
}

impl Audience {
    /// New sessions, which nobody follows yet.
    pub(super) async fn new(stage: &Stage, name: &str, sessions: usize) -> anyhow::Result<Self> {
        let addresses = stage.addresses();
        let fleet = Fleet::connect(&addresses)?;
        let sessions = create_sessions(&fleet, sessions.max(1), name).await?;
        let goals = sessions.iter().map(|_| watch::channel(None).0).collect();
        Ok(Self {
            fleet,
            sessions,
            places: Arc::new(Places::new(stage.servers(), addresses.api_key.clone())),
            addresses,
            goals,
            opened: Opened::new(),
            readers: Vec::new(),
            made: 0,
        })
    }

    /// One that will follow a session from its beginning.
    pub(super) fn follower(&mut self, session: usize) -> Follower {
        let number = self.made;
        self.made += 1;
        let goal: Goal = self.goals[session].subscribe();
        Follower::new(number, &self.places, &self.sessions[session], goal, &self.opened)
    }

    pub(super) fn seat(&mut self, follower: Follower) {
        self.readers.push(TaskTracker::new().spawn(follower.run(CATCH_UP)));
    }

    /// Seats so many, spread over all sessions.
    pub(super) fn seat_many(&mut self, readers: usize) {
        for number in 0..readers {
            let follower = self.follower(number % self.sessions.len());
            self.seat(follower);
        }
    }

    /// Waits until a server has begun to answer all who have a seat.
    pub(super) async fn all_in(&self) -> anyhow::Result<()> {
        let readers = self.readers.len();
        let waited = timeout(LET_IN, self.opened.reach(readers)).await;
        waited.with_context(|| format!("only {} of {readers} readers were let in", self.opened.count()))
    }

    /// Waits until no session has a run left, and gives the last cursor of each.
    pub(super) async fn settle(&self) -> anyhow::Result<Vec<i64>> {
        let deadline = Instant::now() + SETTLE;
        let quiet = stream::iter(&self.sessions).map(|session| quiet(&self.fleet, session, deadline));
        quiet.buffered(CALLS_AT_ONCE).try_collect().await
    }

    /// Waits until nothing more happens and everybody knows it, and reads all events again over gRPC. The load has to be
    /// over.
    pub(super) async fn finish(self) -> anyhow::Result<Findings> {
        let last_cursors = self.settle().await?;
        for (goal, last) in self.goals.iter().zip(&last_cursors) {
            goal.send_replace(Some(*last));
        }
        let mut findings = Findings::default();
        for reader in self.readers {
            findings.add(reader.await.context("a reader broke down")?);
        }
        let subscriber = Subscriber::new(&self.addresses)?;
        findings.history.streams = stream::iter(self.sessions.iter().zip(&last_cursors))
            .map(|(session, last)| {
                let subscriber = &subscriber;
                async move { anyhow::Ok((Arc::clone(session), replay(subscriber, session, *last).await?)) }
            })
            .buffer_unordered(CALLS_AT_ONCE)
            .try_collect()
            .await?;
        Ok(findings)
    }
}

impl Findings {
    fn add(&mut self, followed: Followed) {
        let Followed { reading, complaints, connections, bytes } = followed;
        self.history.readings.push(reading);
        self.complaints.extend(complaints);
        self.connections += connections;
        self.bytes.push(bytes);
    }

    /// Takes out what this reader got, to be judged by itself. What it complained of stays here.
    pub(super) fn split_off(&mut self, reader: &str) -> Self {
        let mut taken = Self::default();
        let index = self.history.readings.iter().position(|reading| reading.reader == reader);
        if let Some(index) = index {
            let reading = self.history.readings.remove(index);
            taken.bytes.push(self.bytes.remove(index));
            if let Some(stream) = self.history.streams.get(&reading.session) {
                taken.history.streams.insert(Arc::clone(&reading.session), stream.clone());
            }
            taken.history.readings.push(reading);
        }
        taken
    }

    /// Events that readers got, each counted as often as it was delivered.
    pub(super) fn deliveries(&self) -> usize {
        self.history.readings.iter().map(|reading| reading.seen.len()).sum()
    }
}
