//! The state of the model.
//!
//! It holds what the protocol can see, and of the past only what a property needs: which calls have started, how
//! often a run was ended, and two violation flags that no correct protocol ever sets. A full history would say the
//! same and multiply the states.

use std::fmt;

pub use crate::task::{Grant, Origin, Phase, Task, Tool};
use crate::{row::Row, scope::Faults};

/// Index in [`State::sessions`].
pub(crate) type SessionIndex = u8;
/// Index of a run in its session, which is its position in the queue.
pub(crate) type RunIndex = u8;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct State {
    pub sessions: Vec<Session>,
    pub workers: Vec<Worker>,
    pub reconciler: Reconciler,
    /// Remaining budget of faults.
    pub faults: Faults,
    pub violations: Violations,
}

/// Violations, recorded when they happen.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Violations {
    /// A call was started again although it has an outcome, or has side effects.
    pub repeated_call: bool,
    /// A commit was accepted from a former owner.
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
    /// Publishes in transit whose senders gave up waiting.
    pub late_publishes: u8,
    /// An ack of the present token is in transit, whose sender gave up waiting.
    pub late_ack: bool,
}

/// What the broker holds under a session's subject.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Token {
    #[default]
    Absent,
    /// Can be delivered, or redelivered, at any time.
    Present,
    /// Acked, but kept by a crash: never delivered, rejects every publish.
    Orphan,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    pub calls: Vec<CallRecord>,
    /// Terminal commits. More than one is a violation.
    pub ends: u8,
}

/// The store's record of a call, and whether it ever started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallRecord {
    pub step: Step,
    pub started: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    #[default]
    New,
    /// About to start; recorded before a call with side effects.
    Announced,
    /// It has an outcome: a result, or that it was interrupted.
    Done,
}

/// A worker process and its incarnations; the last one is the current one.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Worker {
    pub down: bool,
    pub incarnations: Vec<Incarnation>,
}

/// One incarnation of a worker has one id, one lease, and the tools it started.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation {
    pub guard: GuardState,
    pub lease: Lease,
    pub draining: bool,
    pub tasks: Vec<Task>,
    pub tools: Vec<Tool>,
    /// In transit to this incarnation, and lost with it.
    pub in_flight_grants: Vec<InFlightGrant>,
    /// Sessions for which a reclaim signal is in transit.
    pub pending_reclaims: Vec<SessionIndex>,
}

/// A grant in transit to its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InFlightGrant {
    pub session: SessionIndex,
    /// What its worker is to do first. A copy, unaffected by later changes.
    pub phase: Phase,
    pub age: Age,
}

/// Age of a grant by its worker's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Age {
    /// So recent that its worker cannot have been signalled about it.
    Fresh,
    Late,
}

/// Identifies an incarnation: the worker's index, and the incarnation's index in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IncarnationId {
    pub worker: u8,
    pub incarnation: u8,
}

/// Short, for traces: `w1.0` is the first incarnation of the second worker.
impl fmt::Debug for IncarnationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "w{}.{}", self.worker, self.incarnation)
    }
}

/// What the guard, and the worker's own clock, know about the lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GuardState {
    /// Renewals succeed.
    #[default]
    Fed,
    /// Renewals have ceased. The lease has not expired yet.
    Starved,
    /// The margin before the lease's expiry has begun: tools are killed, new ones do not start.
    Expired,
}

/// An incarnation's lease in the store, by the database's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lease {
    #[default]
    Held,
    Ended,
    /// Its expiry was acted upon, or its worker has signed off. It cannot be renewed.
    WrittenOff,
}

/// The reconciler between two of its steps.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reconciler {
    /// Sessions found runnable in this round and not yet handled, in order.
    pub todo: Vec<SessionIndex>,
    /// There were orphans when this round began.
    pub healing: bool,
    /// The first session has an orphan, which is removed next.
    pub replacing: bool,
    /// Sessions whose token existed while there were orphans: in the previous round, and in this one.
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

    pub(crate) fn incarnation(&self, id: IncarnationId) -> &Incarnation {
        &self.workers[usize::from(id.worker)].incarnations[usize::from(id.incarnation)]
    }

    pub(crate) fn incarnation_mut(&mut self, id: IncarnationId) -> &mut Incarnation {
        &mut self.workers[usize::from(id.worker)].incarnations[usize::from(id.incarnation)]
    }

    pub(crate) fn incarnations(&self) -> impl Iterator<Item = &Incarnation> {
        self.workers.iter().flat_map(|worker| &worker.incarnations)
    }

    pub(crate) fn incarnations_mut(&mut self) -> impl Iterator<Item = &mut Incarnation> {
        self.workers.iter_mut().flat_map(|worker| &mut worker.incarnations)
    }

    pub(crate) fn tasks(&self) -> impl Iterator<Item = &Task> {
        self.incarnations().flat_map(|incarnation| &incarnation.tasks)
    }

    /// Live tool processes of all workers.
    pub(crate) fn tools(&self) -> impl Iterator<Item = &Tool> {
        self.incarnations().flat_map(|incarnation| &incarnation.tools)
    }
}
