//! Rows as both databases give them, and their way into the domain.

use std::time::Duration;

use remuda_domain::{
    ApiKeyId, CommitId, MessageId, Pool, Run, RunId, RunState, SessionId, TenantId, Timestamp, WorkerId,
    WorkspaceId,
    budget::Total,
    error::Result,
    execution::ExecutionChoice,
    identity::{ApiKey, Scope, Tenant},
    message::{Message, Role},
    run::{CancelRequest, Failure, ParkReason, Parked},
    session::{Head, Owner, Session, SessionStatus, Workspace},
    step::Step,
    worker::{Registration, Worker, WorkerState},
};
use sqlx::FromRow;
use uuid::Uuid;

use crate::{
    error::{corrupt, parse},
    time::DbTime,
};

/// The columns of a [`RunRow`], for statements that name `runs r` and `sessions s`.
macro_rules! run_columns {
    () => {
        "r.id, r.tenant_id, r.session_id, r.seq, r.state, r.input, r.timeout_ms, r.attempts, r.lost_attempts, \
         r.created_at, r.started_at, r.finished_at, r.failure, r.last_steps, r.cancel_at, r.cancel_reason, \
         r.cancel_delivered_at, r.cancel_stopped_at, r.parked, r.parked_at, r.paused_ms, r.idempotency_key, \
         r.traceparent, s.current_run, s.current_started_at"
    };
}

/// The columns of a [`HeadRow`] of `sessions`.
macro_rules! head_columns {
    () => {
        "id, tenant_id, pool, closed, epoch, owner, current_run, current_started_at, pending, last_seq, last_cursor, \
         last_commit"
    };
}

macro_rules! session_columns {
    () => {
        "id, tenant_id, workspace_id, parent_id, name, title, pool, closed, created_at, epoch, owner, current_run, pending, \
         last_cursor, execution, agent, model"
    };
}

#[derive(Debug, FromRow)]
pub(crate) struct TenantRow {
    id: Uuid,
    name: String,
    created_at: DbTime,
}

impl From<TenantRow> for Tenant {
    fn from(row: TenantRow) -> Self {
        Self { id: TenantId::from_uuid(row.id), name: row.name, created_at: row.created_at.0 }
    }
}

#[derive(Debug, FromRow)]
pub(crate) struct KeyRow {
    id: Uuid,
    tenant_id: Uuid,
    name: String,
    scopes: String,
    created_at: DbTime,
    expires_at: Option<DbTime>,
    revoked_at: Option<DbTime>,
}

impl KeyRow {
    pub(crate) fn into_key(self) -> Result<ApiKey> {
        let scopes = self.scopes.split_whitespace().map(str::parse).collect::<Result<Vec<Scope>>>();
        Ok(ApiKey {
            id: ApiKeyId::from_uuid(self.id),
            tenant: TenantId::from_uuid(self.tenant_id),
            name: self.name,
            scopes: scopes.map_err(|_| corrupt("key"))?,
            created_at: self.created_at.0,
            expires_at: self.expires_at.map(|at| at.0),
            revoked_at: self.revoked_at.map(|at| at.0),
        })
    }
}

#[derive(Debug, FromRow)]
pub(crate) struct WorkspaceRow {
    id: Uuid,
    tenant_id: Uuid,
    name: String,
    root: String,
    created_at: DbTime,
}

impl From<WorkspaceRow> for Workspace {
    fn from(row: WorkspaceRow) -> Self {
        Self {
            id: WorkspaceId::from_uuid(row.id),
            tenant: TenantId::from_uuid(row.tenant_id),
            name: row.name,
            root: row.root,
            created_at: row.created_at.0,
        }
    }
}

/// A session's head with what only the store needs to know.
#[derive(Clone, Debug, FromRow)]
pub(crate) struct HeadRow {
    pub(crate) id: Uuid,
    tenant_id: Uuid,
    pool: String,
    closed: bool,
    epoch: i64,
    pub(crate) owner: Option<Uuid>,
    current_run: Option<Uuid>,
    current_started_at: Option<DbTime>,
    pending: i64,
    last_seq: i64,
    last_cursor: i64,
    last_commit: Option<Uuid>,
    /// The database's clock when the row was locked.
    #[sqlx(default)]
    pub(crate) now: Option<DbTime>,
}

/// A loaded head and when its current run started.
#[derive(Clone, Debug)]
pub(crate) struct LockedHead {
    pub(crate) head: Head,
    pub(crate) current_started_at: Option<Timestamp>,
}

impl HeadRow {
    /// `owner` says whether the recorded owner lives; who does not need to know says [`Owner::Alive`] without a lease.
    pub(crate) fn into_head(self, owner: Owner) -> Result<LockedHead> {
        let head = Head {
            tenant: TenantId::from_uuid(self.tenant_id),
            session: SessionId::from_uuid(self.id),
            pool: pool(&self.pool)?,
            closed: self.closed,
            epoch: self.epoch,
            owner,
            current: self.current_run.map(RunId::from_uuid),
            pending: self.pending,
            last_seq: self.last_seq,
            last_cursor: self.last_cursor,
            last_commit: self.last_commit.map(CommitId::from_uuid),
        };
        Ok(LockedHead { head, current_started_at: self.current_started_at.map(|at| at.0) })
    }

    /// The head for decisions that do not depend on the owner's lease.
    pub(crate) fn into_head_with_owner(self) -> Result<LockedHead> {
        let owner = match self.owner {
            Some(worker) => Owner::Alive { worker: WorkerId::from_uuid(worker), lease_left: Duration::ZERO },
            None => Owner::Nobody,
        };
        self.into_head(owner)
    }
}

fn pool(text: &str) -> Result<Pool> {
    text.parse().map_err(|_| corrupt("pool"))
}

/// The lease of a worker by the database's clock.
#[derive(Clone, Copy, Debug, FromRow)]
pub(crate) struct LeaseRow {
    pub(crate) id: Uuid,
    pub(crate) state: i16,
    /// Microseconds until the lease ends; zero or less when it has.
    pub(crate) left_us: i64,
    /// The database's clock when this was read.
    #[sqlx(default)]
    pub(crate) now: Option<DbTime>,
}

pub(crate) const WORKER_ACTIVE: i16 = 0;
pub(crate) const WORKER_DRAINING: i16 = 1;
pub(crate) const WORKER_GONE: i16 = 2;

impl LeaseRow {
    pub(crate) fn owner(self) -> Owner {
        let worker = WorkerId::from_uuid(self.id);
        match u64::try_from(self.left_us) {
            Ok(left) if left > 0 && self.state != WORKER_GONE => {
                Owner::Alive { worker, lease_left: Duration::from_micros(left) }
            }
            _ => Owner::Expired { worker },
        }
    }
}

#[derive(Debug, FromRow)]
pub(crate) struct SessionRow {
    id: Uuid,
    tenant_id: Uuid,
    workspace_id: Uuid,
    parent_id: Option<Uuid>,
    name: Option<String>,
    title: String,
    pool: String,
    closed: bool,
    created_at: DbTime,
    epoch: i64,
    owner: Option<Uuid>,
    current_run: Option<Uuid>,
    pending: i64,
    last_cursor: i64,
    execution: Option<String>,
    agent: Option<String>,
    model: Option<String>,
}

impl SessionRow {
    pub(crate) fn into_session(self) -> Result<Session> {
        Ok(Session {
            id: SessionId::from_uuid(self.id),
            tenant: TenantId::from_uuid(self.tenant_id),
            workspace: WorkspaceId::from_uuid(self.workspace_id),
            parent: self.parent_id.map(SessionId::from_uuid),
            name: self.name,
            title: self.title,
            pool: pool(&self.pool)?,
            status: if self.closed { SessionStatus::Closed } else { SessionStatus::Open },
            pending: self.pending,
            current: self.current_run.map(RunId::from_uuid),
            owner: self.owner.map(WorkerId::from_uuid),
            epoch: self.epoch,
            last_cursor: self.last_cursor,
            created_at: self.created_at.0,
            execution: execution(self.execution.as_deref())?,
            agent: self.agent,
            model: self.model,
            permissions: remuda_domain::permission::SessionPermissions::default(),
            depth: 0,
            budget: None,
        })
    }
}

/// What a session asked for; almost always nothing.
pub(crate) fn execution(text: Option<&str>) -> Result<ExecutionChoice> {
    text.map_or_else(|| Ok(ExecutionChoice::default()), |text| parse("execution", text))
}

#[derive(Clone, Debug, FromRow)]
pub(crate) struct RunRow {
    pub(crate) id: Uuid,
    tenant_id: Uuid,
    pub(crate) session_id: Uuid,
    seq: i64,
    state: i16,
    input: String,
    timeout_ms: i64,
    attempts: i32,
    lost_attempts: i32,
    created_at: DbTime,
    started_at: Option<DbTime>,
    finished_at: Option<DbTime>,
    failure: Option<String>,
    last_steps: Option<String>,
    cancel_at: Option<DbTime>,
    cancel_reason: Option<String>,
    cancel_delivered_at: Option<DbTime>,
    cancel_stopped_at: Option<DbTime>,
    parked: Option<String>,
    parked_at: Option<DbTime>,
    paused_ms: i64,
    idempotency_key: Option<String>,
    traceparent: Option<String>,
    current_run: Option<Uuid>,
    current_started_at: Option<DbTime>,
}

impl RunRow {
    /// The run without its outcomes, which are in its steps.
    pub(crate) fn into_run(self) -> Result<Run> {
        let stored = RunState::from_db(self.state).ok_or_else(|| corrupt("run state"))?;
        let is_current = self.current_run == Some(self.id);
        let state = if stored == RunState::Queued && is_current { RunState::Running } else { stored };
        let started_at = self.started_at.or(if is_current { self.current_started_at } else { None });
        let count = |number: i32| u32::try_from(number).unwrap_or(0);
        let millis = |number: i64| Duration::from_millis(u64::try_from(number).unwrap_or(0));
        let failure = self.failure.as_deref().map(|text| parse::<Failure>("failure", text)).transpose()?;
        let cancel = self.cancel_at.map(|at| CancelRequest {
            at: at.0,
            reason: self.cancel_reason.unwrap_or_default(),
            delivered_at: self.cancel_delivered_at.map(|at| at.0),
            stopped_at: self.cancel_stopped_at.map(|at| at.0),
        });
        let parked = match (self.parked.as_deref(), self.parked_at) {
            (Some(reason), Some(at)) => Some(Parked {
                reason: ParkReason::parse(reason).ok_or_else(|| corrupt("park reason"))?,
                at: at.0,
            }),
            _ => None,
        };
        Ok(Run {
            id: RunId::from_uuid(self.id),
            tenant: TenantId::from_uuid(self.tenant_id),
            session: SessionId::from_uuid(self.session_id),
            seq: self.seq,
            state,
            input: parse("input", &self.input)?,
            timeout: millis(self.timeout_ms),
            attempt: count(self.attempts) + u32::from(is_current),
            lost_attempts: count(self.lost_attempts),
            created_at: self.created_at.0,
            started_at: started_at.map(|at| at.0),
            finished_at: self.finished_at.map(|at| at.0),
            outcomes: Vec::new(),
            answer: None,
            failure,
            cancel,
            parked,
            parent: None,
            spent: Total::default(),
            budget: None,
            paused: millis(self.paused_ms),
            idempotency_key: self.idempotency_key,
            traceparent: self.traceparent,
        })
    }

    pub(crate) fn last_steps(&self) -> Result<Vec<Step>> {
        self.last_steps.as_deref().map_or_else(|| Ok(Vec::new()), |text| parse("steps", text))
    }
}

/// The head run of a session with the directory its tools work in.
#[derive(Debug, FromRow)]
pub(crate) struct HeadRunRow {
    #[sqlx(flatten)]
    pub(crate) run: RunRow,
    pub(crate) root: String,
    pub(crate) execution: Option<String>,
    pub(crate) agent: Option<String>,
    pub(crate) model: Option<String>,
}

#[derive(Debug, FromRow)]
pub(crate) struct StepRow {
    pub(crate) run_id: Uuid,
    pub(crate) step: String,
}

#[derive(Debug, FromRow)]
pub(crate) struct MessageRow {
    id: Uuid,
    session_id: Uuid,
    run_id: Option<Uuid>,
    role: String,
    agent: Option<String>,
    parts: String,
    created_at: DbTime,
}

impl MessageRow {
    pub(crate) fn into_message(self) -> Result<Message> {
        Ok(Message {
            id: MessageId::from_uuid(self.id),
            session: SessionId::from_uuid(self.session_id),
            run: self.run_id.map(RunId::from_uuid),
            role: Role::parse(&self.role).ok_or_else(|| corrupt("role"))?,
            agent: self.agent,
            parts: parse("message", &self.parts)?,
            created_at: self.created_at.0,
        })
    }
}

#[derive(Debug, FromRow)]
pub(crate) struct WorkerRow {
    id: Uuid,
    host: String,
    version: String,
    pool: String,
    slots: i32,
    busy: i32,
    state: i16,
    started_at: DbTime,
    lease_until: DbTime,
    alive: bool,
}

impl WorkerRow {
    pub(crate) fn into_worker(self) -> Result<Worker> {
        let state = match self.state {
            WORKER_ACTIVE if self.alive => WorkerState::Active,
            WORKER_DRAINING if self.alive => WorkerState::Draining,
            _ => WorkerState::Gone,
        };
        Ok(Worker {
            registration: Registration {
                id: WorkerId::from_uuid(self.id),
                host: self.host,
                version: self.version,
                pool: pool(&self.pool)?,
                slots: u32::try_from(self.slots).unwrap_or(0),
            },
            state,
            busy: u32::try_from(self.busy).unwrap_or(0),
            started_at: self.started_at.0,
            lease_until: self.lease_until.0,
        })
    }
}

/// The run that a request with an idempotency key created.
#[derive(Clone, Debug, FromRow)]
pub(crate) struct KeyedRun {
    pub(crate) tenant_id: Uuid,
    pub(crate) key: String,
    pub(crate) request_hash: Vec<u8>,
    pub(crate) run_id: Uuid,
}

impl HeadRunRow {
    pub(crate) fn id(&self) -> RunId {
        RunId::from_uuid(self.run.id)
    }

    /// Whether a worker could execute it now: it is not parked.
    pub(crate) fn is_runnable(&self) -> bool {
        self.run.state == RunState::Queued.to_db()
    }
}
