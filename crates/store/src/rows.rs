//! Row types that both databases return, and their conversion to domain types.

/// Declares a row with its columns, and a macro that lists them for statements. Three drivers read it: by name, or on
/// the flush thread's connection by position.
macro_rules! read_row {
    (
        $(#[$meta:meta])*
        struct $name:ident, $list:ident {
            $(#[$first_meta:meta])* $first_column:literal => $first:ident: $first_type:ty,
            $($(#[$field_meta:meta])* $column:literal => $field:ident: $type:ty,)*
        }
        $(default { $(#[$default_meta:meta])* $default:ident: $default_type:ty })?
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, sqlx_macros::FromRow)]
        pub(crate) struct $name {
            $(#[$first_meta])* pub(crate) $first: $first_type,
            $($(#[$field_meta])* pub(crate) $field: $type,)*
            $(#[sqlx(default)] $(#[$default_meta])* pub(crate) $default: $default_type,)?
        }

        impl $name {
            /// Reads the columns from the given one on, and moves on to the one after them.
            pub(crate) fn read(row: &rusqlite::Row<'_>, column: &mut usize) -> rusqlite::Result<Self> {
                let mut next = || {
                    *column += 1;
                    *column - 1
                };
                Ok(Self {
                    $first: row.get(next())?,
                    $($field: row.get(next())?,)*
                    $($default: <$default_type>::default(),)?
                })
            }
        }

        macro_rules! $list {
            () => {
                concat!($first_column $(, ", ", $column)*)
            };
        }
    };
}

mod approval;
mod budget;
#[macro_use]
mod run;
#[macro_use]
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
    run::{HeadRunRow, RunFinish, RunInsert, RunRow, StepRow, labels},
    session::{HeadRow, HeadWrite, LockedHead, SessionRow, SessionSettings, execution, permissions},
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
    tenant_id: Option<Uuid>,
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
            tenant: self.tenant_id.map(TenantId::from_uuid),
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

/// A workspace with its tenant's name.
#[derive(Debug, FromRow)]
pub(crate) struct NamedWorkspaceRow {
    pub(crate) tenant: String,
    #[sqlx(flatten)]
    pub(crate) workspace: WorkspaceRow,
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

/// The lease of a worker, and its pool.
#[derive(Clone, Debug, FromRow)]
pub(crate) struct WorkerLeaseRow {
    #[sqlx(flatten)]
    pub(crate) lease: LeaseRow,
    pub(crate) pool: String,
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
                bus_secret: None,
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
