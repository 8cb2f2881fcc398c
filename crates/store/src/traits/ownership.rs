//! What workers do to sessions they own.

use std::{fmt, sync::Weak, time::Duration};

use async_trait::async_trait;
use remuda_domain::{
    Appended, ApprovalId, CommitId, Fence, MessageId, Pool, Run, RunId, SessionId, TenantId, Timestamp,
    WorkerId,
    budget::{Amount, Spent},
    content::Content,
    error::Result,
    event::NewEvent,
    execution::ExecutionChoice,
    message::{Part, Role},
    permission::SessionPermissions,
    run::{ParkReason, RunEnd},
    step::Step,
};
use serde::{Deserialize, Serialize};

use crate::{NewApproval, NewChild, SessionChange};

/// What workers do to sessions they own.
#[async_trait]
pub trait Ownership {
    /// Asks for ownership. Fails with `ownership_lost` when the worker's own lease has ended. Concurrent calls are
    /// committed together.
    async fn claim(&self, tenant: TenantId, session: SessionId, worker: WorkerId) -> Result<Claim>;
    /// Writes progress or the end of a run under a fence. Fails with `ownership_lost` when the fence is old; then
    /// nothing was written. The event that reports the end is the store's to append. Concurrent calls are committed
    /// together.
    async fn commit(&self, commit: Commit) -> Result<Committed>;
    /// Gives ownership up, whatever the session's current run is; that run goes back to the head of the line. Should it end
    /// instead, whoever waits for it hears of it with the next [`Fleet::resume_ready`](crate::Fleet::resume_ready).
    async fn release(&self, fence: Fence) -> Result<SessionChange>;
    /// Notes that the owner knows of a request to stop its current run. Noting it twice appends no second event.
    async fn cancel_delivered(&self, fence: Fence, run: RunId) -> Result<Appended>;
    /// Whether the session has a run that could start and nobody who owns it: the look after the ack.
    async fn is_runnable(&self, tenant: TenantId, session: SessionId) -> Result<bool>;
    /// Names who has room for sessions whose first run is submitted: the commit that accepts such a run grants it, if its session is nobody's,
    /// and no token is needed. Whoever comes later takes the place of who was there. A grant is the seat's to bring to its worker; if it is lost on
    /// its way, [`Fleet::unheld_sessions`](crate::Fleet::unheld_sessions) tells.
    fn stand_by(&self, seats: Weak<dyn Seats>);
}

/// Where workers have room that take what they are granted without having asked.
pub trait Seats: fmt::Debug + Send + Sync {
    /// A free slot of some worker of the pool for this session. Nothing if there is none, or if that worker has the session in hand already.
    /// Called in the middle of a transaction: must not wait.
    fn seat(&self, pool: &Pool, session: SessionId) -> Option<Box<dyn Seat>>;
}

/// A slot that is kept for a session. Dropping it gives it back.
pub trait Seat: Send {
    /// Whose it is.
    fn worker(&self) -> WorkerId;
    /// The session is granted, and that is committed. Must not wait.
    fn take(self: Box<Self>, grant: Box<Grant>);
}

#[derive(Clone, Debug)]
pub enum Claim {
    Granted(Box<Grant>),
    /// A live worker owns the session.
    Refused {
        owner: WorkerId,
        retry_after: Duration,
    },
    /// No run waits, or there is no such session.
    NothingToDo,
    /// The session was still recorded as a lost worker's. It was taken back, which may have ended its run: ask again. Whoever waits
    /// for that run hears of it with the next [`Fleet::resume_ready`](crate::Fleet::resume_ready).
    TakenBack(SessionChange),
}

/// Ownership of a session with its head run. Over a wire it is JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Grant {
    pub fence: Fence,
    pub run: Run,
    /// What is left of the run's time, by the database's clock.
    pub time_left: Duration,
    /// Steps that earlier owners committed, in order.
    pub steps: Vec<Step>,
    pub workspace_root: String,
    /// Where the session's tools execute, as far as it was said.
    pub execution: ExecutionChoice,
    /// The agent that leads the session, and the model it was made with, as far as it was said.
    pub agent: Option<String>,
    pub model: Option<String>,
    pub permissions: SessionPermissions,
    /// How many sessions are above this one.
    pub depth: u32,
    /// When it was granted, by the database's clock.
    pub at: Timestamp,
    /// Runs right behind this one that nobody has tried, as far as they were [wanted](Commit::wanted).
    pub following: Vec<Run>,
    /// A budget covers the run: every question has to be [reserved](Budgets::reserve). Whether that budget limits money.
    pub budgeted: Option<Budgeted>,
}

/// What the budgets that cover a run limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budgeted {
    pub tokens: bool,
    pub money: bool,
}

/// What a worker writes at once.
#[derive(Clone, Debug)]
pub struct Commit {
    /// Repeating a commit whose answer was lost does nothing twice.
    pub id: CommitId,
    pub fence: Fence,
    pub run: RunId,
    /// New or finished steps of the run, by id.
    pub steps: Vec<Step>,
    /// A commit with messages has events too: these give messages their place.
    pub messages: Vec<NewMessage>,
    /// Texts that the steps name by their hash. What is stored already is left alone.
    pub contents: Vec<Content>,
    pub events: Vec<NewEvent>,
    pub children: Vec<NewChild>,
    pub approvals: Vec<NewApproval>,
    /// What questions have cost. A step counts once, however often it is told of.
    pub spent: Vec<Spent>,
    pub then: Then,
    /// Ends of the runs right behind this one, in order, which the owner executed before this end was committed. They hold nothing but
    /// steps and events. Taken as far as they are still next in line, see [`Committed::ended`].
    pub behind: Vec<Commit>,
    /// How many [following](Grant::following) runs the owner wants to know along with the next one.
    pub wanted: u32,
}

impl Commit {
    /// A commit that says nothing but what becomes of the run.
    #[must_use]
    pub fn new(fence: Fence, run: RunId, then: Then) -> Self {
        Self {
            id: CommitId::new(),
            fence,
            run,
            steps: Vec::new(),
            messages: Vec::new(),
            contents: Vec::new(),
            events: Vec::new(),
            children: Vec::new(),
            approvals: Vec::new(),
            spent: Vec::new(),
            then,
            behind: Vec::new(),
            wanted: 0,
        }
    }

    /// The end of a run that has nothing but steps and events.
    #[must_use]
    pub fn is_small_end(&self) -> bool {
        let nothing_else = self.messages.is_empty()
            && self.contents.is_empty()
            && self.children.is_empty()
            && self.approvals.is_empty()
            && self.spent.is_empty();
        nothing_else && matches!(&self.then, Then::End(finish) if finish.agent.is_none())
    }
}

/// What becomes of the run, and of the session, with a commit.
#[derive(Clone, Debug)]
pub enum Then {
    /// The run goes on.
    Continue,
    /// The run goes back to the head of the line for another worker, and the session is given up. If someone has asked
    /// for the run to stop, it ends instead.
    HandOver,
    /// The run waits as data, and the session is given up. If what it waits for has come already, it goes back to the head of
    /// the line instead.
    Park(Parking),
    /// The run ends, and the worker moves on to the next one of the session.
    End(Finish),
}

/// What a run waits for. It goes on when `needed` of all these have come: children have ended, approvals are pending no longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parking {
    pub reason: ParkReason,
    pub children: Vec<RunId>,
    pub approvals: Vec<ApprovalId>,
    pub needed: u32,
    /// For `budget`: what could not be reserved. The run goes on when there is room for it.
    pub amount: Option<Amount>,
}

impl Parking {
    /// Waits until someone says so.
    #[must_use]
    pub const fn on(reason: ParkReason) -> Self {
        Self { reason, children: Vec::new(), approvals: Vec::new(), needed: 0, amount: None }
    }
}

/// Ends a run.
#[derive(Clone, Debug)]
pub struct Finish {
    pub end: RunEnd,
    /// Missing for a run that began while the one before it was being committed: it starts where that one ends.
    pub started_at: Option<Timestamp>,
    /// How long ago the last process of a cancelled run was dead. A time span, because clocks differ.
    pub stopped_ago: Option<Duration>,
    /// Give the session up even if another run waits: the worker's turn is over, or it drains.
    pub give_up: bool,
    /// The agent that leads the session from here on, if it is another one.
    pub agent: Option<String>,
}

#[derive(Clone, Debug)]
pub struct NewMessage {
    pub id: MessageId,
    pub role: Role,
    /// The agent that was active when it was said.
    pub agent: Option<String>,
    pub parts: Vec<Part>,
}

#[derive(Clone, Debug)]
pub struct Committed {
    /// After an end: how many runs ended, this one and those [behind](Commit::behind) it. The others were not taken.
    pub ended: usize,
    /// The appended events with their cursors, to be published live.
    pub events: Appended,
    /// After an end: the next run, if the worker still owns the session.
    pub next: Option<Box<Grant>>,
    /// The commit gave the session up (nothing waits, or the worker asked for it).
    pub released: bool,
    /// Sessions of new children, to be woken.
    pub children: Vec<SessionChange>,
    /// After an end, also one that came of a hand-over: the run that may wait for this one, see
    /// [`Trees::settle_parked`](crate::Trees::settle_parked).
    pub parent: Option<RunId>,
    /// After an end: there are unfinished runs below it, see [`Trees::cancel_children`](crate::Trees::cancel_children).
    pub has_children: bool,
    /// Of a run that goes on and told of costs: what limits it now. Budgets may be made while it works.
    pub budgeted: Option<Budgeted>,
}
