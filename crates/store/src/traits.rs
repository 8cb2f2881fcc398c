//! The seam: what a store does, by who asks.

use std::time::Duration;

use async_trait::async_trait;
use remuda_domain::{
    ApiKeyId, ApprovalId, CommitId, Cursor, Event, Fence, MessageId, Pool, Run, RunId, RunInput, RunState,
    SandboxId, SessionId, StepId, TenantId, Timestamp, WorkerId, WorkspaceId,
    approval::{Answer, Approval, ApprovalRequest, ApprovalState},
    budget::{Amount, Budget, Limit, Spent, Total},
    content::{Content, ContentHash},
    error::Result,
    event::NewEvent,
    execution::{ExecutionChoice, SandboxRecord},
    identity::{ApiKey, Principal, Scope, Tenant},
    message::{Message, Part, Role},
    page::{Page, PageRequest},
    permission::SessionPermissions,
    run::{Failure, IfBusy, ParkReason, RunEnd},
    session::{Head, Session, SessionRef, SessionStatus, Workspace},
    step::Step,
    task::{TaskRound, TaskStatus},
    worker::{Registration, Worker},
};

/// Everything a process needs from the truth.
pub trait Store:
    Identity
    + Sessions
    + Runs
    + Trees
    + Approvals
    + Budgets
    + Ownership
    + Events
    + Fleet
    + Sandboxes
    + Send
    + Sync
    + 'static
{
}

impl<T> Store for T where
    T: Identity
        + Sessions
        + Runs
        + Trees
        + Approvals
        + Budgets
        + Ownership
        + Events
        + Fleet
        + Sandboxes
        + Send
        + Sync
        + 'static
{
}

/// Tenants and their keys.
#[async_trait]
pub trait Identity {
    /// Creates the tenant, or returns the one of that name, with its default workspace rooted at `root`.
    async fn ensure_tenant(&self, name: &str, root: &str) -> Result<Tenant>;
    async fn find_tenant(&self, name: &str) -> Result<Option<Tenant>>;
    /// Fails with `tenant_not_found`.
    async fn get_tenant(&self, tenant: TenantId) -> Result<Tenant>;
    async fn create_key(&self, key: &NewKey) -> Result<ApiKey>;
    /// Finds a key that is neither revoked nor expired by the hash of its secret.
    async fn find_key(&self, secret_hash: &[u8; 32]) -> Result<Option<ApiKey>>;
    async fn list_keys(&self, tenant: TenantId) -> Result<Vec<ApiKey>>;
    /// Fails with `key_not_found` unless the tenant has such a key. Revoking twice is fine.
    async fn revoke_key(&self, tenant: TenantId, key: ApiKeyId) -> Result<ApiKey>;
}

#[derive(Clone, Debug)]
pub struct NewKey {
    pub tenant: TenantId,
    pub name: String,
    pub secret_hash: [u8; 32],
    pub scopes: Vec<Scope>,
    pub expires_at: Option<Timestamp>,
}

/// Sessions and what hangs on them.
#[async_trait]
pub trait Sessions {
    async fn find_workspace(&self, tenant: TenantId, name: &str) -> Result<Option<Workspace>>;
    async fn get_workspace(&self, tenant: TenantId, workspace: WorkspaceId) -> Result<Workspace>;
    /// Fails with `already_exists` when the tenant has a session of that name, and with `workspace_not_found` or
    /// `session_not_found` when the workspace or the parent is not the tenant's.
    async fn create_session(&self, session: &NewSession) -> Result<Changed<Session>>;
    async fn get_session(&self, tenant: TenantId, session: &SessionRef) -> Result<Session>;
    /// Newest first.
    async fn list_sessions(
        &self,
        tenant: TenantId,
        status: Option<SessionStatus>,
        page: &PageRequest,
    ) -> Result<Page<Session>>;
    /// Fails with `session_model_locked` for another model than it has once a run was submitted.
    async fn update_session(
        &self,
        tenant: TenantId,
        session: SessionId,
        update: &SessionUpdate,
    ) -> Result<Changed<Session>>;
    /// Closing twice is fine and appends no second event.
    async fn close_session(&self, tenant: TenantId, session: SessionId) -> Result<Changed<Session>>;
    /// In the order in which they were said.
    async fn list_messages(
        &self,
        tenant: TenantId,
        session: SessionId,
        page: &PageRequest,
    ) -> Result<Page<Message>>;
    /// A text that a commit stored under its hash.
    async fn get_content(&self, tenant: TenantId, hash: ContentHash) -> Result<Option<String>>;
    /// Fails with `already_exists` when the tenant has a workspace of that name.
    async fn create_workspace(&self, workspace: &NewWorkspace) -> Result<Workspace>;
    /// By name.
    async fn list_workspaces(&self, tenant: TenantId, page: &PageRequest) -> Result<Page<Workspace>>;
}

/// A change with the events it appended, to be published live after the commit.
#[derive(Clone, Debug)]
pub struct Changed<T> {
    pub value: T,
    pub events: Vec<Event>,
}

/// What a change did to a session that the fleet should hear of.
#[derive(Clone, Debug)]
pub struct SessionChange {
    pub tenant: TenantId,
    pub session: SessionId,
    pub pool: Pool,
    /// Nobody owns the session and a run of it could start, so a worker should be woken.
    pub wake: bool,
    pub events: Vec<Event>,
}

#[derive(Clone, Debug)]
pub struct NewSession {
    pub id: SessionId,
    pub tenant: TenantId,
    pub workspace: WorkspaceId,
    pub parent: Option<SessionId>,
    pub name: Option<String>,
    pub title: String,
    pub pool: Pool,
    pub execution: ExecutionChoice,
    pub agent: Option<String>,
    pub model: Option<String>,
    pub permissions: SessionPermissions,
    pub budget: Option<Limit>,
}

/// What to change of a session; the rest stays.
#[derive(Clone, Debug, Default)]
pub struct SessionUpdate {
    pub title: Option<String>,
    pub agent: Option<String>,
    pub model: Option<String>,
    /// All of them: what is said here replaces what was said before, also what people answered `always` with.
    pub permissions: Option<SessionPermissions>,
}

#[derive(Clone, Debug)]
pub struct NewWorkspace {
    pub id: WorkspaceId,
    pub tenant: TenantId,
    pub name: String,
    /// The directory on the workers.
    pub root: String,
}

/// Runs as callers see them.
#[async_trait]
pub trait Runs {
    /// Accepts a run. Concurrent calls are committed together.
    async fn submit(&self, run: NewRun) -> Result<Submitted>;
    async fn get_run(&self, tenant: TenantId, run: RunId) -> Result<Run>;
    /// Newest first.
    async fn list_runs(&self, tenant: TenantId, filter: &RunFilter, page: &PageRequest) -> Result<Page<Run>>;
    /// The unfinished runs of a session, in the order of execution.
    async fn list_queue(&self, tenant: TenantId, session: SessionId, page: &PageRequest)
    -> Result<Page<Run>>;
    async fn list_steps(&self, tenant: TenantId, run: RunId) -> Result<Vec<Step>>;
    /// Asks for a run to stop, and all below it: one that nobody executes (waiting, parked, or its worker is lost) ends at
    /// once, an executing one is marked for its owner.
    async fn request_cancel(&self, tenant: TenantId, run: RunId, reason: &str) -> Result<Cancelled>;
    /// The same for every unfinished run of a session and the runs below these, or of the whole tree of sessions below it.
    async fn cancel_session(
        &self,
        tenant: TenantId,
        session: SessionId,
        reach: Reach,
        reason: &str,
    ) -> Result<CancelledRuns>;
    /// Lets a parked run go on. Fails with `not_parked`.
    async fn resume_run(&self, tenant: TenantId, run: RunId) -> Result<SessionChange>;
    /// The run with the state of its session and its place in line, read at one moment.
    async fn situation(&self, tenant: TenantId, run: RunId) -> Result<Situation>;
}

#[derive(Clone, Debug)]
pub struct NewRun {
    pub id: RunId,
    pub tenant: TenantId,
    pub session: SessionId,
    pub input: RunInput,
    pub timeout: Duration,
    pub if_busy: IfBusy,
    pub idempotency: Option<Idempotency>,
    pub traceparent: Option<String>,
    /// How much the run and those below it may spend.
    pub budget: Option<Limit>,
}

/// Makes a retried submit return the first one's run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idempotency {
    pub key: String,
    /// Hash of everything else in the request: the same key with another request is a conflict.
    pub request_hash: [u8; 32],
}

#[derive(Clone, Debug)]
pub struct Submitted {
    pub run: Run,
    pub pool: Pool,
    pub deduplicated: bool,
    /// Nobody owns the session, so a worker must be woken. An owner finds the run by itself: its release and this submit
    /// are ordered by the session's lock.
    pub wake: bool,
    pub events: Vec<Event>,
    /// Runs that `if_busy = interrupt` cancelled or asked to stop.
    pub interrupted: Vec<RunId>,
    /// Whom to tell that its current run should stop.
    pub signal: Option<(WorkerId, RunId)>,
    /// What became of the runs below the interrupted ones, and of those that waited for them.
    pub below: CancelledRuns,
}

#[derive(Clone, Debug, Default)]
pub struct RunFilter {
    pub session: Option<SessionId>,
    /// Empty means every state.
    pub states: Vec<RunState>,
}

#[derive(Clone, Debug)]
pub struct Cancelled {
    pub run: Run,
    pub already_finished: bool,
    pub change: SessionChange,
    /// The owner to tell, when the run executes.
    pub signal: Option<WorkerId>,
    /// What became of the runs below it, and of the one that waited for it.
    pub below: CancelledRuns,
}

/// How far a request about a session goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    Session,
    /// The session and all sessions below it.
    Tree,
}

/// What cancelling many runs did.
#[derive(Clone, Debug, Default)]
pub struct CancelledRuns {
    /// Runs that are over now.
    pub ended: Vec<RunId>,
    /// Runs that execute and whose owner has to be told.
    pub requested: Vec<CancelSignal>,
    pub changes: Vec<SessionChange>,
}

/// Whom to tell that a run should stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CancelSignal {
    pub worker: WorkerId,
    pub session: SessionId,
    pub run: RunId,
}

/// What `explain` looks at.
#[derive(Clone, Debug)]
pub struct Situation {
    pub run: Run,
    pub head: Head,
    /// Unfinished runs ahead of it in its session.
    pub ahead: i64,
    /// The run directly ahead, if any.
    pub blocked_by: Option<RunId>,
    /// Workers of the session's pool with a live lease that take work.
    pub workers: u32,
    /// Their free slots at the last heartbeats.
    pub free_slots: u32,
}

/// Runs below runs. A child is made by a commit of its parent ([`Commit::children`]), in a session of its own.
#[async_trait]
pub trait Trees {
    /// How these runs stand, in no order. Runs that do not exist are left out. Only one that has ended has an answer.
    async fn look_at_children(&self, tenant: TenantId, runs: &[RunId]) -> Result<Vec<ChildReport>>;
    /// Lets a parked run go on if what it waits for has come ([`Parking`]). Called with every end of a child; nothing happens,
    /// and nothing is wrong, if the run is not parked or has to wait on.
    async fn settle_parked(&self, tenant: TenantId, run: RunId) -> Result<Option<SessionChange>>;
    /// Asks for every unfinished run below this one to stop.
    async fn cancel_children(&self, tenant: TenantId, run: RunId, reason: &str) -> Result<CancelledRuns>;
    /// The sessions directly below one, oldest first.
    async fn list_child_sessions(
        &self,
        tenant: TenantId,
        session: SessionId,
        page: &PageRequest,
    ) -> Result<Page<Session>>;
    /// What a session and all sessions below it have spent; the first is without those below.
    async fn session_totals(&self, tenant: TenantId, session: SessionId) -> Result<(Total, Total)>;
    /// The same for a run.
    async fn run_totals(&self, tenant: TenantId, run: RunId) -> Result<(Total, Total)>;
}

/// How a child stands, for its parent.
#[derive(Clone, Debug, PartialEq)]
pub struct ChildReport {
    pub run: RunId,
    pub session: SessionId,
    pub state: RunState,
    /// What its agent said last, else what its last tool gave.
    pub answer: Option<String>,
    pub failure: Option<Failure>,
}

/// A run that a commit of its parent makes.
#[derive(Clone, Debug)]
pub struct NewChild {
    /// The session to make, or, without one, `session` exists and is a child of the parent's session.
    pub new_session: Option<ChildSession>,
    pub session: SessionId,
    pub run: RunId,
    pub input: RunInput,
    pub timeout: Duration,
}

/// A session of a child. Workspace, pool and execution are its parent's.
#[derive(Clone, Debug)]
pub struct ChildSession {
    pub title: String,
    pub agent: String,
    pub model: Option<String>,
    pub permissions: SessionPermissions,
}

/// Calls that wait for a person.
#[async_trait]
pub trait Approvals {
    /// Fails with `approval_not_found`.
    async fn get_approval(&self, tenant: TenantId, approval: ApprovalId) -> Result<Approval>;
    /// Newest first.
    async fn list_approvals(
        &self,
        tenant: TenantId,
        filter: &ApprovalFilter,
        page: &PageRequest,
    ) -> Result<Page<Approval>>;
    /// Decides, by the rules of [`Approval::check`], and lets the run go on if it is parked. `always` adds the rules to the
    /// session's permissions.
    async fn decide(&self, caller: &Principal, approval: ApprovalId, answer: &Answer) -> Result<Decided>;
}

#[derive(Clone, Debug, Default)]
pub struct ApprovalFilter {
    pub state: Option<ApprovalState>,
    pub session: Option<SessionId>,
    pub run: Option<RunId>,
}

#[derive(Clone, Debug)]
pub struct Decided {
    pub approval: Approval,
    pub change: SessionChange,
}

/// A question to people that a commit asks.
#[derive(Clone, Debug)]
pub struct NewApproval {
    pub id: ApprovalId,
    pub request: ApprovalRequest,
    /// How long it may stay open, by the database's clock.
    pub expires_in: Option<Duration>,
}

/// What may be spent.
#[async_trait]
pub trait Budgets {
    /// Holds an amount for a question before it is asked, in every budget that covers the run. Asked again for the same step,
    /// the amount replaces the earlier one. It is given back with what the step [spent](Commit::spent), or with the run's end.
    async fn reserve(&self, fence: Fence, run: RunId, step: StepId, amount: Amount) -> Result<Reserved>;
    /// Changes a limit, or makes one, and lets runs go on that wait for it and now have room. Fails with `run_not_found` or
    /// `session_not_found`, and with `not_parked` for a run that is over.
    async fn set_budget(&self, tenant: TenantId, of: BudgetOf, limit: Limit) -> Result<BudgetChange>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserved {
    /// Also when no budget covers the run.
    Held,
    /// There is no room for it in this one.
    Refused(Budget),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetOf {
    Run(RunId),
    Session(SessionId),
}

#[derive(Clone, Debug)]
pub struct BudgetChange {
    pub budget: Budget,
    /// Runs that go on.
    pub resumed: Vec<RunId>,
    pub changes: Vec<SessionChange>,
}

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
    /// instead, whoever waits for it hears of it with the next [`Fleet::resume_ready`].
    async fn release(&self, fence: Fence) -> Result<SessionChange>;
    /// Notes that the owner knows of a request to stop its current run. Noting it twice appends no second event.
    async fn cancel_delivered(&self, fence: Fence, run: RunId) -> Result<Vec<Event>>;
    /// Whether the session has a run that could start and nobody who owns it: the look after the ack.
    async fn is_runnable(&self, tenant: TenantId, session: SessionId) -> Result<bool>;
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
    /// for that run hears of it with the next [`Fleet::resume_ready`].
    TakenBack(SessionChange),
}

/// Ownership of a session with its head run.
#[derive(Clone, Debug)]
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
    /// A budget covers the run: every question has to be [reserved](Budgets::reserve). Whether that budget limits money.
    pub budgeted: Option<Budgeted>,
}

/// What the budgets that cover a run limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
        }
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
    pub started_at: Timestamp,
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
    /// The appended events with their cursors, to be published live.
    pub events: Vec<Event>,
    /// After an end: the next run, if the worker still owns the session.
    pub next: Option<Box<Grant>>,
    /// The commit gave the session up (nothing waits, or the worker asked for it).
    pub released: bool,
    /// Sessions of new children, to be woken.
    pub children: Vec<SessionChange>,
    /// After an end, also one that came of a hand-over: the run that may wait for this one, see [`Trees::settle_parked`].
    pub parent: Option<RunId>,
    /// After an end: there are unfinished runs below it, see [`Trees::cancel_children`].
    pub has_children: bool,
}

/// Reading the event stream.
#[async_trait]
pub trait Events {
    /// Events after `after`, oldest first, at least `limit` of them unless the stream ends before. Fails with
    /// `session_not_found`. The answer also says where the stream ends now.
    async fn read_events(
        &self,
        tenant: TenantId,
        session: SessionId,
        after: Cursor,
        limit: usize,
    ) -> Result<EventSlice>;
}

#[derive(Clone, Debug, Default)]
pub struct EventSlice {
    pub events: Vec<Event>,
    /// Cursor of the newest event of the session.
    pub last_cursor: Cursor,
}

/// The fleet itself: workers, leases, and what must be woken. These calls act for the system, not for a tenant.
#[async_trait]
pub trait Fleet {
    async fn register_worker(&self, worker: &Registration, lease: Duration) -> Result<()>;
    /// Renews the lease by the database's clock and reads what the store wants of the worker. Fails with
    /// `ownership_lost` when the lease has already ended: whoever lost it must not go on.
    async fn renew_lease(&self, beat: &Heartbeat) -> Result<Orders>;
    /// Ends the worker's lease at once: it stopped cleanly and owns nothing.
    async fn retire_worker(&self, worker: WorkerId) -> Result<()>;
    async fn list_workers(&self, include_gone: bool) -> Result<Vec<Worker>>;
    async fn drain_worker(&self, worker: WorkerId) -> Result<Worker>;
    /// Takes sessions back from workers whose lease ended, at most `limit` at once. Their runs wait for the next owner, or
    /// end: cancelled, out of time, or out of attempts.
    async fn take_back(&self, limit: u32) -> Result<TakenBack>;
    /// Ends runs that started, that nobody executes now, and whose time is over.
    async fn end_overdue(&self, limit: u32) -> Result<TakenBack>;
    /// Lets parked runs go on whose wait is over and whom nobody told, at most `limit` at once.
    async fn resume_ready(&self, limit: u32) -> Result<TakenBack>;
    /// Asks for runs to stop whose parent is over.
    async fn stop_orphans(&self, limit: u32) -> Result<CancelledRuns>;
    /// Closes approvals that nobody decided in time, and lets their runs go on.
    async fn expire_approvals(&self, limit: u32) -> Result<TakenBack>;
    /// How long until the next approval expires.
    async fn next_approval_end(&self) -> Result<Option<Duration>>;
    /// How long until the next lease of a worker could end.
    async fn next_lease_end(&self) -> Result<Option<Duration>>;
    /// Ends every lease, of workers and of leaders, and says how many workers had one. Only for the embedded mode, where a
    /// lock on the data directory proves that nobody lives.
    async fn expire_all_leases(&self) -> Result<u64>;
    /// Sessions with a run that could start and no live owner, after `after` in id order.
    async fn runnable_sessions(&self, after: Option<SessionId>, limit: u32) -> Result<Vec<Runnable>>;
    /// How many sessions should have a token: those that could start, and those that a worker works on.
    async fn count_sessions_with_work(&self) -> Result<u64>;
    async fn queue_stats(&self) -> Result<Vec<PoolStats>>;
    /// Takes or renews a named lease of the control planes: one of them leads at a time.
    async fn lead(&self, name: &str, holder: &str, lease: Duration) -> Result<bool>;
    /// Deletes idempotency keys past their time. Returns how many.
    async fn delete_expired_keys(&self) -> Result<u64>;
    /// Notes what a round of a background task did, for `list_tasks`.
    async fn record_task(&self, round: &TaskRound) -> Result<()>;
    /// By name.
    async fn list_tasks(&self) -> Result<Vec<TaskStatus>>;
    /// Answers when the store does.
    async fn ping(&self) -> Result<()>;
}

/// What exists, or should, outside of the worker processes. These calls act for the system, not for a tenant.
#[async_trait]
pub trait Sandboxes {
    /// Writes what is known of a sandbox, new or changed.
    async fn save_sandbox(&self, record: &SandboxRecord) -> Result<()>;
    /// It is gone. Forgetting twice is fine.
    async fn forget_sandbox(&self, id: SandboxId) -> Result<()>;
    /// Newest first.
    async fn list_sandboxes(&self, limit: u32) -> Result<Vec<SandboxRecord>>;
    /// What tells this installation from others on the same engine, for good.
    async fn installation(&self) -> Result<String>;
}

/// What was taken back, or ended, on behalf of owners that are gone.
#[derive(Clone, Debug, Default)]
pub struct TakenBack {
    pub changes: Vec<SessionChange>,
    /// Runs that ended by it.
    pub ended: u64,
    /// There may be more to do at once.
    pub more: bool,
}

#[derive(Clone, Debug)]
pub struct Heartbeat {
    pub worker: WorkerId,
    pub lease: Duration,
    /// The runs it executes, to learn which of them should stop.
    pub running: Vec<RunId>,
}

/// What the store wants of a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Orders {
    pub cancel: Vec<RunId>,
    pub drain: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runnable {
    pub tenant: TenantId,
    pub session: SessionId,
    pub pool: Pool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolStats {
    pub pool: Pool,
    pub runnable_sessions: i64,
    pub running_sessions: i64,
    pub queued_runs: i64,
    pub workers: u32,
    pub slots: u32,
    pub oldest_runnable_at: Option<Timestamp>,
}
