//! Row types that both databases return, and their conversion to domain types.

mod approval;
mod budget;
mod run;
mod session;
mod webhook;

use std::time::Duration;

use remuda_domain::{
    ApiKeyId, MessageId, RunId, SessionId, TenantId, WorkerId, WorkspaceId,
    error::Result,
    identity::{ApiKey, Scope, Tenant},
    message::{Message, Role},
    session::{Owner, Workspace},
    worker::{Registration, Worker, WorkerState},
};
use sqlx_macros::FromRow;
use uuid::Uuid;

use self::session::pool;
pub(crate) use self::{
    approval::ApprovalRow,
    budget::{BudgetRow, TotalRow, amount_from_db, amount_to_db, count_to_db},
    run::{HeadRunRow, RunRow, StepRow},
    session::{HeadRow, LockedHead, SessionRow, execution, permissions},
    webhook::{ActiveRow, DeadLetterRow, SecretRow, WebhookRow},
};
use crate::{
    error::{corrupt, parse},
    time::DbTime,
};

/// The events that one commit appended to a session, stored as one row.
#[derive(Debug, FromRow)]
pub(crate) struct ChunkRow {
    pub(crate) last_cursor: i64,
    pub(crate) chunk: String,
}

/// The columns of a [`WebhookRow`], for statements that read `webhooks w`.
macro_rules! webhook_columns {
    () => {
        "w.id, w.tenant_id, w.session_id, w.run_id, w.url, w.types, w.state, w.cursor, w.attempts, w.next_attempt_at, \
         w.failure, w.failure_status, w.delivered_at, w.dropped, w.previous_until, w.created_at, \
         (SELECT count(*) FROM dead_letters d WHERE d.webhook_id = w.id) AS dead_letters"
    };
}

/// The columns of a [`DeadLetterRow`].
macro_rules! dead_letter_columns {
    () => {
        "webhook_id, id, event, attempts, failure, failure_status, died_at, next_attempt_at"
    };
}

/// The columns of a [`RunRow`], for statements that read `runs r` and `sessions s`.
macro_rules! run_columns {
    () => {
        "r.id, r.tenant_id, r.session_id, r.seq, r.state, r.input, r.timeout_ms, r.attempts, r.lost_attempts, \
         r.created_at, r.started_at, r.finished_at, r.failure, r.last_steps, r.cancel_at, r.cancel_reason, \
         r.cancel_delivered_at, r.cancel_stopped_at, r.parked, r.parked_at, r.paused_ms, r.idempotency_key, \
         r.traceparent, r.awaited_by, r.parent_run, r.budget_id, r.model_calls, r.input_tokens, r.output_tokens, r.cached_tokens, \
         r.cache_write_tokens, r.reasoning_tokens, r.cost_micros, s.current_run, s.current_started_at"
    };
}

/// The columns of a [`HeadRow`], for statements that read `sessions`.
macro_rules! head_columns {
    () => {
        "id, tenant_id, pool, closed, epoch, owner, current_run, current_started_at, pending, last_seq, last_cursor, \
         last_commit, ties, version"
    };
}

/// The columns of a [`SessionRow`].
macro_rules! session_columns {
    () => {
        "id, tenant_id, workspace_id, parent_id, name, title, pool, closed, created_at, epoch, owner, current_run, pending, \
         last_cursor, execution, agent, model, permissions, depth, budget_id"
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

/// The lease of a worker, by the database's clock.
#[derive(Clone, Copy, Debug, FromRow)]
pub(crate) struct LeaseRow {
    pub(crate) id: Uuid,
    pub(crate) state: i16,
    /// Microseconds until the lease expires; zero or less if it has expired.
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

/// An idempotency key and the run that its request created.
#[derive(Clone, Debug, FromRow)]
pub(crate) struct KeyedRun {
    pub(crate) tenant_id: Uuid,
    pub(crate) key: String,
    pub(crate) request_hash: Vec<u8>,
    pub(crate) run_id: Uuid,
}
