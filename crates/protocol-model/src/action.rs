//! All actions of the model. Each is one atomic step, so that any other can come between two of them.

use crate::state::{IncarnationId, SessionIndex};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A client's run is committed.
    Submit(SessionIndex),
    /// A submit whose commit also grants the session to a worker.
    SubmitTo(SessionIndex, IncarnationId),
    /// The control plane publishes the token that it owes after a submit.
    Wake(SessionIndex),
    /// The broker delivers a token to a worker, for the first time or again after the ack wait.
    Deliver(SessionIndex, IncarnationId),
    /// The in-flight grant with this index reaches its worker.
    DeliverGrant(IncarnationId, usize),
    /// The worker receives the signal to reclaim a session that it owns.
    ReceiveReclaim(IncarnationId, SessionIndex),
    /// The worker's task with this index takes its next step.
    TaskStep(IncarnationId, usize, TaskStep),
    Worker(IncarnationId, WorkerEvent),
    Reconcile(ReconcilerStep),
    /// A fault that the protocol has to tolerate.
    Fault(Fault),
}

/// The steps of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskStep {
    Claim,
    RecordInterrupted,
    Announce,
    StartTool,
    FinishTool,
    RecordOutcome,
    EndRun,
    /// Starts to release the session at a step boundary, because the worker drains.
    HandOver,
    Release,
    Ack,
    Recheck,
    Republish,
}

/// What happens to an incarnation without a new fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerEvent {
    /// Shortly before an unrenewed lease expires: the guard kills.
    GuardExpires,
    /// By the database's clock.
    LeaseEnds,
    /// The worker notices that its lease is lost, drops everything and begins a new incarnation.
    NoticeLoss,
    /// A drained worker signs off and is started again.
    SignOff,
    /// A crashed worker is started again.
    Restart,
}

/// The steps of the reconciler's tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReconcilerStep {
    /// Reclaims a session from a worker whose lease expired, and owes a publish for it.
    ReclaimSessions(SessionIndex),
    /// Signals the owner of a session to reclaim it: its grant was lost.
    SignalReclaim(SessionIndex),
    /// Reads which sessions are runnable and whether there are orphans.
    Begin,
    /// Publishes the token of the next runnable session.
    Publish,
    /// Removes the existing token of the session as an orphan.
    Discard,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Crash(IncarnationId),
    Stall(IncarnationId),
    Drain(IncarnationId),
    CrashPlane,
    /// Like `CrashPlane`, before grants are sent.
    CrashPlaneUnsent,
    Wipe,
    Orphan(SessionIndex),
    /// The control plane's publish gets no response; it may be stored later.
    WakeTimesOut(SessionIndex),
    /// The reconciler's publish gets no response, which ends its round.
    SweepTimesOut,
    /// A task's publish or ack gets no response and may be applied later, or its claim is granted but the response is
    /// lost.
    WorkTimesOut(IncarnationId, usize),
    LoseGrant(IncarnationId, usize),
    /// Delayed for so long that its worker may be signalled meanwhile.
    DelayGrant(IncarnationId, usize),
    LatePublish(SessionIndex),
    LateAck(SessionIndex),
    /// The reconciler signals an owner to reclaim a session that is active there.
    FalseAlarm(SessionIndex),
    /// A renewal in transit reaches the store after the lease's expiry. It cannot revive a lease that was written
    /// off.
    LateRenewal(IncarnationId),
}
