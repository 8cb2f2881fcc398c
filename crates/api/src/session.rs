//! Sessions and workspaces.

use remuda_proto::v1;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    approval::Permissions,
    json_value::{text, time},
    spending::{Budget, Total},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionStatus {
    Open,
    Closed,
}

impl SessionStatus {
    /// `None` for an unknown number.
    #[must_use]
    pub fn of(number: i32) -> Option<Self> {
        match v1::SessionStatus::try_from(number) {
            Ok(v1::SessionStatus::Open) => Some(Self::Open),
            Ok(v1::SessionStatus::Closed) => Some(Self::Closed),
            Ok(v1::SessionStatus::Unspecified) | Err(_) => None,
        }
    }
}

impl From<SessionStatus> for v1::SessionStatus {
    fn from(status: SessionStatus) -> Self {
        match status {
            SessionStatus::Open => Self::Open,
            SessionStatus::Closed => Self::Closed,
        }
    }
}

/// A session: its runs execute one at a time, in order.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Session {
    /// `ses_…`
    pub id: String,
    /// The caller's own name for it, unique within the tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    pub workspace_id: String,
    pub pool: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<SessionStatus>,
    /// Number of unfinished runs.
    pub pending_runs: i64,
    /// The run that is executing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_run_id: Option<String>,
    /// The worker that owns the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// The parent session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<String>,
    /// The session's agent; the workspace's default agent if omitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The model that the session was created with; its agents choose if omitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execution: Option<Execution>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permissions: Option<Permissions>,
    /// Number of ancestor sessions.
    #[serde(skip_serializing_if = "is_zero")]
    #[schema(required = false)]
    pub depth: u32,
    /// Budget of the session and the sessions below it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// What its own runs have spent. Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spent: Option<Total>,
    /// What its runs and those of all sessions below it have spent. Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tree_spent: Option<Total>,
    /// Cursor of the newest event.
    pub last_cursor: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub created_at: Option<String>,
    /// Revision of the editable fields; the ETag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Where the tools of a session execute. Omitted fields have the tenant's default.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Execution {
    /// `none` (chat only: every tool call is refused), `local` or `docker`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(required = false)]
    pub backend: String,
    /// Container image.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(required = false)]
    pub image: String,
    /// `none`, or a network that the operator has created and allowed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(required = false)]
    pub network: String,
    /// How a container accesses the workspace: `mount` or `copy`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(required = false)]
    pub workspace_access: String,
}

/// A directory that declares agents, models and skills, and in which tools work.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Workspace {
    /// `ws_…`
    pub id: String,
    pub name: String,
    /// The directory on the workers.
    pub root: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub created_at: Option<String>,
}

impl From<v1::Session> for Session {
    fn from(session: v1::Session) -> Self {
        Self {
            status: SessionStatus::of(session.status),
            id: session.id,
            name: text(session.name),
            title: text(session.title),
            workspace_id: session.workspace_id,
            pool: session.pool,
            pending_runs: session.pending_runs,
            current_run_id: text(session.current_run_id),
            worker_id: text(session.worker_id),
            parent_id: text(session.parent_id),
            agent: text(session.agent),
            model: text(session.model),
            execution: session.execution.map(Into::into),
            permissions: session.permissions.map(Into::into),
            depth: session.depth,
            budget: session.budget.map(Into::into),
            spent: session.spent.map(Into::into),
            tree_spent: session.tree_spent.map(Into::into),
            last_cursor: session.last_cursor,
            created_at: time(session.created_at),
            revision: text(session.revision),
        }
    }
}

impl From<v1::Execution> for Execution {
    fn from(execution: v1::Execution) -> Self {
        let v1::Execution { backend, image, network, workspace_access } = execution;
        Self { backend, image, network, workspace_access }
    }
}

impl From<Execution> for v1::Execution {
    fn from(execution: Execution) -> Self {
        let Execution { backend, image, network, workspace_access } = execution;
        Self { backend, image, network, workspace_access }
    }
}

impl From<v1::Workspace> for Workspace {
    fn from(workspace: v1::Workspace) -> Self {
        let v1::Workspace { id, name, root, created_at } = workspace;
        Self { id, name, root, created_at: time(created_at) }
    }
}
