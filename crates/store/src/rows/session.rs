//! Session rows and session heads.

use std::time::Duration;

use remuda_domain::{
    CommitId, Pool, RunId, SessionId, TenantId, Timestamp, WorkerId, WorkspaceId,
    error::Result,
    execution::ExecutionChoice,
    permission::SessionPermissions,
    session::{Head, Owner, Session, SessionStatus},
};
use sqlx_macros::FromRow;
use uuid::Uuid;

use crate::{
    error::{corrupt, parse},
    time::DbTime,
};

read_row! {
    /// The head of a session, from `sessions s`.
    struct HeadRow, head_columns {
        "s.id AS session_id" => session_id: Uuid,
        "s.tenant_id" => tenant_id: Uuid,
        "s.pool" => pool: String,
        "s.closed" => closed: bool,
        "s.epoch" => epoch: i64,
        "s.owner" => owner: Option<Uuid>,
        "s.current_run" => current_run: Option<Uuid>,
        "s.current_started_at" => current_started_at: Option<DbTime>,
        "s.pending" => pending: i64,
        "s.last_seq" => last_seq: i64,
        "s.last_cursor" => last_cursor: i64,
        "s.last_commit" => last_commit: Option<Uuid>,
        "s.ties AS has_related" => has_related: bool,
        "s.version" => version: i64,
    }
    default {
        /// The database's clock when the row was locked.
        now: Option<DbTime>
    }
}

read_row! {
    /// The session settings that a worker needs, from `sessions s` and `workspaces w`.
    struct SessionSettings, settings_columns {
        "w.root" => root: String,
        "s.execution" => execution: Option<String>,
        "s.agent" => agent: Option<String>,
        "s.model" => model: Option<String>,
        "s.permissions" => permissions: Option<String>,
        "s.depth" => depth: i32,
        "s.budget_id AS session_budget" => session_budget: Option<Uuid>,
    }
}

/// A loaded session head with the columns that only the store needs.
#[derive(Clone, Debug)]
pub(crate) struct LockedHead {
    pub(crate) head: Head,
    pub(crate) current_started_at: Option<Timestamp>,
    /// A run of the session may have related rows: a parent, children, approvals, waits or spending. Only then the end
    /// of a run has to look for them.
    pub(crate) has_related: bool,
    /// The version of the row it was read from, for optimistic locking.
    pub(crate) version: i64,
    /// The worker that this change makes the owner: its lease must be live when it is written.
    pub(crate) granted_to: Option<WorkerId>,
}

written_row! {
    /// The head of a session: the columns that runs change.
    struct HeadWrite in sessions {
        Key id: Uuid => uuid,
        /// The version that was read.
        Guard version: i64 => bigint,
        /// See [`LockedHead::granted_to`].
        Guard granted_to: Option<Uuid> => uuid,
        Set epoch: i64 => bigint,
        Set owner: Option<Uuid> => uuid,
        Set current_run: Option<Uuid> => uuid,
        Set current_started_at: Option<DbTime> => timestamptz,
        Set pending: i64 => bigint,
        Set last_seq: i64 => bigint,
        Set last_cursor: i64 => bigint,
        Set last_commit: Option<Uuid> => uuid,
        /// The last chunk, if no trigger has set it.
        Sqlite last_chunk: Option<i64> => bigint,
    }
    set "version = t.version + 1"
}

impl HeadWrite {
    pub(crate) fn new(locked: &LockedHead) -> Self {
        let LockedHead { head, current_started_at, version, granted_to, has_related: _ } = locked;
        let Head {
            session,
            epoch,
            owner,
            current,
            pending,
            last_seq,
            last_cursor,
            last_commit,
            tenant: _,
            pool: _,
            closed: _,
        } = head;
        Self {
            id: session.as_uuid(),
            version: *version,
            granted_to: granted_to.map(WorkerId::as_uuid),
            epoch: *epoch,
            owner: owner.worker().map(WorkerId::as_uuid),
            current_run: current.map(RunId::as_uuid),
            current_started_at: current_started_at.map(DbTime),
            pending: *pending,
            last_seq: *last_seq,
            last_cursor: *last_cursor,
            last_commit: last_commit.map(CommitId::as_uuid),
            last_chunk: None,
        }
    }
}

impl HeadRow {
    /// `owner` says whether the recorded owner is alive. Callers that do not need to know pass [`Owner::Alive`] without
    /// a lease.
    pub(crate) fn into_head(self, owner: Owner) -> Result<LockedHead> {
        let head = Head {
            tenant: TenantId::from_uuid(self.tenant_id),
            session: SessionId::from_uuid(self.session_id),
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
        let current_started_at = self.current_started_at.map(|at| at.0);
        let (has_related, version) = (self.has_related, self.version);
        Ok(LockedHead { head, current_started_at, has_related, version, granted_to: None })
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

pub(super) fn pool(text: &str) -> Result<Pool> {
    text.parse().map_err(|_| corrupt("pool"))
}

#[derive(Debug, FromRow)]
pub(crate) struct SessionRow {
    pub(crate) id: Uuid,
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
    permissions: Option<String>,
    pub(crate) depth: i32,
    pub(crate) budget_id: Option<Uuid>,
}

impl SessionRow {
    /// Whether it has its own budget.
    pub(crate) fn has_budget(&self) -> bool {
        self.budget_id == Some(self.id)
    }

    /// Converts to a session without its budget, which is a separate row.
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
            permissions: permissions(self.permissions.as_deref())?,
            depth: u32::try_from(self.depth).unwrap_or(0),
            budget: None,
        })
    }
}

/// Parses a session's execution choice; mostly it has none.
pub(crate) fn execution(text: Option<&str>) -> Result<ExecutionChoice> {
    text.map_or_else(|| Ok(ExecutionChoice::default()), |text| parse("execution", text))
}

/// Parses a session's permissions; mostly it has none.
pub(crate) fn permissions(text: Option<&str>) -> Result<SessionPermissions> {
    text.map_or_else(|| Ok(SessionPermissions::default()), |text| parse("permissions", text))
}
