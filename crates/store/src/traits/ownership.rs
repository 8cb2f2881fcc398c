//! Session ownership: claims, commits and releases.

use std::time::Duration;

use async_trait::async_trait;
use remuda_domain::{
    Appended, ApprovalId, CommitId, Fence, MessageId, Run, RunId, SessionId, TenantId, Timestamp, WorkerId,
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

/// What workers do with sessions: claim, commit, release.
#[async_trait]
pub trait Ownership {
    /// Claims ownership of a session. Fails with `ownership_lost` if the worker's own lease has expired. Concurrent
    /// calls share a transaction.
    async fn claim(&self, tenant: TenantId, session: SessionId, worker: WorkerId) -> Result<Claim>;
    /// Writes progress or the end of a run under a fence. Fails with `ownership_lost` if the fence is outdated; then
    /// nothing was written. The store appends the terminal event of an ended run; a commit must not contain one.
    /// Concurrent calls share a transaction.
    async fn commit(&self, commit: Commit) -> Result<Committed>;
    /// Releases a session. Its current run, if any, goes back to the head of the session's queue. If the run ends
    /// instead (cancelled, out of time), a parent that waits for it is resumed by the next
    /// [`Fleet::resume_ready`](crate::Fleet::resume_ready).
    async fn release(&self, fence: Fence) -> Result<SessionChange>;
    /// Records that the owner has received the cancellation of its current run; idempotent, the second call appends no
    /// event.
    async fn mark_cancel_delivered(&self, fence: Fence, run: RunId) -> Result<Appended>;
    /// Whether the session has a run that could start and no live owner. Workers check this after they acknowledge a
    /// token.
    async fn is_runnable(&self, tenant: TenantId, session: SessionId) -> Result<bool>;
}

/// The result of a claim.
#[derive(Clone, Debug)]
pub enum Claim {
    Granted(Box<Grant>),
    /// A live worker owns the session.
    Refused {
        owner: WorkerId,
        retry_after: Duration,
    },
    /// No run could start, or the session does not exist.
    NothingToDo,
    /// The session belongs to another pool than the worker.
    OtherPool,
    /// The recorded owner's lease had expired. The session was reclaimed, which may have ended its run: claim again. A
    /// parent that waits for that run is resumed by the next [`Fleet::resume_ready`](crate::Fleet::resume_ready).
    Reclaimed(SessionChange),
}

/// Ownership of a session, with the run to execute. Its JSON is the body of a grant on the bus.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Grant {
    pub fence: Fence,
    pub run: Run,
    /// How long the run may still be executed.
    pub time_left: Duration,
    /// Steps that earlier owners committed, in order.
    pub steps: Vec<Step>,
    pub workspace_root: String,
    /// Where the session's tools execute, as far as the session specifies it.
    pub execution: ExecutionChoice,
    /// The session's active agent and model, as far as the session specifies them.
    pub agent: Option<String>,
    pub model: Option<String>,
    pub permissions: SessionPermissions,
    /// Number of ancestor sessions.
    pub depth: u32,
    /// When it was granted, by the database's clock.
    pub at: Timestamp,
    /// The next runs of the session, as many as the commit asked to [prefetch](Commit::prefetch), up to the first one
    /// that cannot be executed ahead (it was tried or cancelled before, has a parent, or has a budget).
    pub following: Vec<Run>,
    /// Set if a budget covers the run: every model call then needs a [reservation](crate::Budgets::reserve).
    pub budgeted: Option<BudgetLimits>,
}

/// Which resources the budgets that cover a run limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetLimits {
    pub tokens: bool,
    pub money: bool,
}

/// What an owner writes in one atomic step.
#[derive(Clone, Debug)]
pub struct Commit {
    /// Makes the commit idempotent: a retry with the same id has no second effect.
    pub id: CommitId,
    pub fence: Fence,
    pub run: RunId,
    /// New or finished steps of the run, by id.
    pub steps: Vec<Step>,
    /// New messages. A commit with messages needs events too: their cursors order the messages.
    pub messages: Vec<NewMessage>,
    /// Texts that the steps refer to by hash. Texts that are already stored are left alone.
    pub contents: Vec<Content>,
    pub events: Vec<NewEvent>,
    pub children: Vec<NewChild>,
    pub approvals: Vec<NewApproval>,
    /// What model calls have cost. Each step is counted once, however often it is reported.
    pub spent: Vec<Spent>,
    pub then: RunTransition,
    /// Ends of the next runs of the session, in order, which the owner executed before this end was committed. Each is
    /// a [small end](Commit::is_small_end). The store accepts them up to the first run that is no longer next in the
    /// queue, see [`Committed::ended`].
    pub successors: Vec<Commit>,
    /// How many [following](Grant::following) runs to return with the next grant.
    pub prefetch: u32,
    /// How long the run was executed so far, in all attempts. Needed if the session is released.
    pub worked: Duration,
}

impl Commit {
    /// A commit that contains only the run's transition.
    #[must_use]
    pub fn new(fence: Fence, run: RunId, then: RunTransition) -> Self {
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
            successors: Vec::new(),
            prefetch: 0,
            worked: Duration::ZERO,
        }
    }

    /// Whether this is the end of a run with nothing but steps and events.
    #[must_use]
    pub fn is_small_end(&self) -> bool {
        let nothing_else = self.messages.is_empty()
            && self.contents.is_empty()
            && self.children.is_empty()
            && self.approvals.is_empty()
            && self.spent.is_empty();
        nothing_else && matches!(&self.then, RunTransition::End(finish) if finish.agent.is_none())
    }
}

/// What a commit does with the run and its session.
#[derive(Clone, Debug)]
pub enum RunTransition {
    /// The run continues.
    Continue,
    /// The session is released, and the run goes back to the head of its queue for another worker. If its cancellation
    /// was requested, the run ends instead.
    HandOver,
    /// The session is released, and the run is parked: it waits in the database without a worker. If the wait is
    /// already satisfied, the run goes back to the head of its queue instead.
    Park(ParkRequest),
    /// The run ends, and the owner continues with the next run of the session.
    End(Finish),
}

/// What a parked run waits for. It resumes when at least `needed` of these children have ended or approvals are no
/// longer pending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParkRequest {
    pub reason: ParkReason,
    pub children: Vec<RunId>,
    pub approvals: Vec<ApprovalId>,
    pub needed: u32,
    /// For `budget`: the amount that could not be reserved. The run resumes when there is room for it.
    pub amount: Option<Amount>,
}

impl ParkRequest {
    /// Waits until the run is [resumed](crate::Runs::resume_run) explicitly.
    #[must_use]
    pub const fn on(reason: ParkReason) -> Self {
        Self { reason, children: Vec::new(), approvals: Vec::new(), needed: 0, amount: None }
    }
}

/// The end of a run.
#[derive(Clone, Debug)]
pub struct Finish {
    pub end: RunEnd,
    /// `None` for a run that was executed before the end of its predecessor was committed: it starts where the
    /// predecessor ends.
    pub started_at: Option<Timestamp>,
    /// How long ago the last process of a cancelled run died. A duration, because clocks differ.
    pub stopped_ago: Option<Duration>,
    /// Release the session even if it has more runs: the worker has executed its maximum in a row, or it drains.
    pub release: bool,
    /// The new active agent of the session, if it changes.
    pub agent: Option<String>,
}

/// A message that a commit adds to the transcript.
#[derive(Clone, Debug)]
pub struct NewMessage {
    pub id: MessageId,
    pub role: Role,
    /// The agent that was active when the message was created.
    pub agent: Option<String>,
    pub parts: Vec<Part>,
}

/// The result of a commit.
#[derive(Clone, Debug)]
pub struct Committed {
    /// After an end: how many runs ended, this one and its accepted [successors](Commit::successors). The other
    /// successors were not accepted.
    pub ended: usize,
    /// The appended events with their cursors, for the caller to publish.
    pub events: Appended,
    /// After an end: the next run, if the worker still owns the session.
    pub next: Option<Box<Grant>>,
    /// The commit released the session: it has no more runs, or the owner asked for it.
    pub released: bool,
    /// Sessions of new child runs, to be woken.
    pub children: Vec<SessionChange>,
    /// After an end, also one caused by a hand-over: the parent, which may wait for this run, see
    /// [`Trees::resume_if_ready`](crate::Trees::resume_if_ready).
    pub parent: Option<RunId>,
    /// After an end: it has unfinished child runs, see [`Trees::cancel_children`](crate::Trees::cancel_children).
    pub has_children: bool,
    /// For a run that continues and reported costs: the current limits. Budgets may be created while the run executes.
    pub budgeted: Option<BudgetLimits>,
}
