//! Conversions of sessions and workspaces.

use remuda_domain::session::{Session, SessionStatus, Workspace};

use super::timestamp;
use crate::v1;

impl From<Session> for v1::Session {
    fn from(session: Session) -> Self {
        let status = match session.status {
            SessionStatus::Open => v1::SessionStatus::Open,
            SessionStatus::Closed => v1::SessionStatus::Closed,
        };
        Self {
            revision: session.revision(),
            id: session.id.to_string(),
            name: session.name.unwrap_or_default(),
            title: session.title,
            workspace_id: session.workspace.to_string(),
            pool: session.pool.to_string(),
            status: status.into(),
            pending_runs: session.pending,
            current_run_id: session.current.map(|run| run.to_string()).unwrap_or_default(),
            worker_id: session.owner.map(|worker| worker.to_string()).unwrap_or_default(),
            last_cursor: session.last_cursor,
            created_at: Some(timestamp(session.created_at)),
            parent_id: session.parent.map(|parent| parent.to_string()).unwrap_or_default(),
            execution: (!session.execution.is_default()).then(|| session.execution.into()),
            agent: session.agent.unwrap_or_default(),
            model: session.model.unwrap_or_default(),
            permissions: (!session.permissions.is_default()).then(|| session.permissions.into()),
            depth: session.depth,
            budget: session.budget.map(Into::into),
            spent: None,
            tree_spent: None,
        }
    }
}

impl From<Workspace> for v1::Workspace {
    fn from(workspace: Workspace) -> Self {
        Self {
            id: workspace.id.to_string(),
            name: workspace.name,
            root: workspace.root,
            created_at: Some(timestamp(workspace.created_at)),
        }
    }
}
