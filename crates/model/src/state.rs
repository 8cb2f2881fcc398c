//! The world at one moment.
//!
//! It holds what the protocol can see, and of the past only what a property needs: which calls have started, how often a
//! run was ended, and two marks that no correct protocol ever sets. A full journal would say the same and make every
//! history a state of its own.

use std::fmt;

pub use crate::task::{Grant, Origin, Phase, Task, Tool};
use crate::{row::Row, scope::Faults};

/// A session's place in [`State::sessions`].
pub(crate) type SessionIndex = u8;
/// A run's place in its session, which is its place in line.
pub(crate) type RunIndex = u8;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct State {
    pub sessions: Vec<Session>,
    pub workers: Vec<Worker>,
    pub reconciler: Reconciler,
    /// What may still go wrong.
    pub faults: Faults,
    pub evidence: Evidence,
}

/// What must never have happened, noted when it does.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Evidence {
    /// A call was started again although it has an outcome, or has side effects.
    pub repeated_call: bool,
    /// A commit was accepted from someone who was no longer the owner.
    pub stale_commit: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Session {
    /// In the store.
    pub row: Row,
    pub runs: Vec<Run>,
    /// In the broker.
    pub token: Token,
    /// Publishes that the control plane owes after submits.
    pub wakes: u8,
    /// Publishes whose senders gave up waiting, still under way.
    pub late_publishes: u8,
    /// An ack of the present token whose sender gave up waiting is still under way.
    pub late_ack: bool,
}

/// What the broker holds under a session's subject.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Token {
    #[default]
    Absent,
    /// Can be delivered, or delivered again, at any time.
    Present,
    /// Acked, kept by a crash: never delivered, refuses every publish.
    Orphan,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    pub calls: Vec<CallRecord>,
    /// Terminal commits. More than one is a violation.
    pub ends: u8,
}

/// What the store knows of a call, and whether it ever started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallRecord {
    pub step: Step,
    pub started: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    #[default]
    New,
    /// About to start, said before a call with side effects does.
    Announced,
    /// It has an outcome: a result, or that it was interrupted.
    Done,
}

/// A worker process and the lives it has had; the last one is the present one.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Worker {
    pub down: bool,
    pub lives: Vec<Life>,
}

/// One life of a worker has one id, one lease, and the tools that it started.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Life {
    pub watch: Watch,
    pub lease: Lease,
    pub draining: bool,
    pub tasks: Vec<Task>,
    pub tools: Vec<Tool>,
    /// On their way to it. They are for this life alone, so they go with it.
    pub parcels: Vec<Parcel>,
    /// Sessions of which it is about to hear that they are its own.
    pub told: Vec<SessionIndex>,
}

/// A grant that is sent to its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Parcel {
    pub session: SessionIndex,
    /// What its worker is to do first. A copy: what happens meanwhile changes nothing about it.
    pub phase: Phase,
    pub age: Age,
}

/// How long ago a parcel was granted, by its worker's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Age {
    /// So lately that its worker cannot have been told of it.
    Fresh,
    Late,
}

/// Names a life: the worker's place, and the life's place in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LifeId {
    pub worker: u8,
    pub life: u8,
}

/// Short, for traces: `w1.0` is the first life of the second worker.
impl fmt::Debug for LifeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "w{}.{}", self.worker, self.life)
    }
}

/// What the guard, and the worker's own clock, know of the lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Watch {
    /// Renewals succeed.
    #[default]
    Fed,
    /// Renewals have ceased. The lease still has time to run.
    Hungry,
    /// The margin before the lease's end has begun: tools are killed, new ones do not start.
    TimeUp,
}

/// A life's lease in the store, by the database's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lease {
    #[default]
    Held,
    Ended,
    /// Someone has acted upon its end, or its worker has signed off. It cannot be renewed.
    WrittenOff,
}

/// The reconciler between two of its steps.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reconciler {
    /// Sessions found runnable in this round and not yet seen to, in order.
    pub todo: Vec<SessionIndex>,
    /// There were orphans when this round began.
    pub healing: bool,
    /// The first session has an orphan, which is removed next.
    pub replacing: bool,
    /// Sessions whose token was there already while there were orphans: in the round before, and in this one.
    pub suspected: Vec<SessionIndex>,
    pub suspects: Vec<SessionIndex>,
}

impl State {
    pub(crate) fn session(&self, session: SessionIndex) -> &Session {
        &self.sessions[usize::from(session)]
    }

    pub(crate) fn session_mut(&mut self, session: SessionIndex) -> &mut Session {
        &mut self.sessions[usize::from(session)]
    }

    pub(crate) fn life(&self, id: LifeId) -> &Life {
        &self.workers[usize::from(id.worker)].lives[usize::from(id.life)]
    }

    pub(crate) fn life_mut(&mut self, id: LifeId) -> &mut Life {
        &mut self.workers[usize::from(id.worker)].lives[usize::from(id.life)]
    }

    pub(crate) fn lives(&self) -> impl Iterator<Item = &Life> {
        self.workers.iter().flat_map(|worker| &worker.lives)
    }

    pub(crate) fn lives_mut(&mut self) -> impl Iterator<Item = &mut Life> {
        self.workers.iter_mut().flat_map(|worker| &mut worker.lives)
    }

    pub(crate) fn tasks(&self) -> impl Iterator<Item = &Task> {
        self.lives().flat_map(|life| &life.tasks)
    }

    /// Live tool processes, wherever they run.
    pub(crate) fn tools(&self) -> impl Iterator<Item = &Tool> {
        self.lives().flat_map(|life| &life.tools)
    }
}
