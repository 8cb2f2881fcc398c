//! Everything that can happen, one atomic step each, so that anything can come between any two.

use crate::state::{LifeId, SessionIndex};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A client's run is committed.
    Submit(SessionIndex),
    /// The same, and the session is granted in that very commit to a worker that stands by.
    SubmitTo(SessionIndex, LifeId),
    /// The control plane publishes the token that it owes after a submit.
    Wake(SessionIndex),
    /// The broker gives a token to a worker: for the first time, or once more because the ack wait is over.
    Deliver(SessionIndex, LifeId),
    /// The parcel with this place reaches its worker.
    Arrive(LifeId, usize),
    /// The worker hears that the session is its own.
    Hear(LifeId, SessionIndex),
    /// The worker's task with this place in its life takes its next step.
    Work(LifeId, usize, Work),
    Worker(LifeId, Event),
    Reconcile(Round),
    /// Something that the protocol has to bear.
    Fault(Fault),
}

/// The steps of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    Claim,
    RecordInterrupted,
    Announce,
    StartTool,
    FinishTool,
    RecordOutcome,
    EndRun,
    /// Goes to give the session up at a step boundary, because the worker drains.
    HandOver,
    Release,
    Ack,
    Look,
    PublishAgain,
}

/// What befalls a life without any more going wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Shortly before an unrenewed lease ends: the guard kills.
    TimeUp,
    /// By the database's clock.
    LeaseEnds,
    /// The worker sees that its lease is lost, drops everything and begins a new life.
    NoticeLoss,
    /// A drained worker signs off and is started again.
    SignOff,
    /// A crashed worker is started again.
    Restart,
}

/// The steps of the reconciler's tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// Takes a session back from a worker whose lease ended, and has it woken.
    TakeBack(SessionIndex),
    /// Tells a session's owner that it is the owner: its grant was lost.
    Tell(SessionIndex),
    /// Reads which sessions are runnable and whether there are orphans.
    Begin,
    /// Publishes the token of the next runnable session.
    Publish,
    /// Removes the token that refused it, as an orphan.
    Discard,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Crash(LifeId),
    Stall(LifeId),
    Drain(LifeId),
    CrashPlane,
    /// The same, before what was granted is sent.
    CrashPlaneUnsent,
    Wipe,
    Orphan(SessionIndex),
    /// The control plane's publish is not answered; it may be stored later.
    WakeTimesOut(SessionIndex),
    /// The reconciler's is not, which ends its round.
    SweepTimesOut,
    /// A task's publish or ack is not answered and may be carried out later, or its claim is granted but the answer lost.
    WorkTimesOut(LifeId, usize),
    LoseParcel(LifeId, usize),
    /// It takes so long that its worker may be told of it meanwhile.
    DelayParcel(LifeId, usize),
    LatePublish(SessionIndex),
    LateAck(SessionIndex),
    /// The reconciler tells a session's owner that it is the owner, who knows.
    FalseAlarm(SessionIndex),
    /// A renewal that was under way reaches the store after the lease's end. It cannot revive one that was written off.
    LateRenewal(LifeId),
}
