//! Sessions, workspaces, transcripts and stored contents.

use async_trait::async_trait;
use remuda_domain::{
    Appended, Epoch, Pool, RunId, SessionId, TenantId, WorkspaceId,
    budget::Limit,
    content::ContentHash,
    error::Result,
    execution::ExecutionChoice,
    message::Message,
    page::{Page, PageRequest},
    permission::SessionPermissions,
    session::{Session, SessionRef, SessionStatus, Workspace},
};

/// Sessions, workspaces, transcripts and stored contents.
#[async_trait]
pub trait Sessions {
    async fn find_workspace(&self, tenant: TenantId, name: &str) -> Result<Option<Workspace>>;
    async fn get_workspace(&self, tenant: TenantId, workspace: WorkspaceId) -> Result<Workspace>;
    /// Creates a session. Fails with `already_exists` if the tenant has a session with that name, and with
    /// `workspace_not_found` or `session_not_found` if the workspace or the parent does not belong to the tenant.
    async fn create_session(&self, session: &NewSession) -> Result<Changed<Session>>;
    /// Reads a session by id or name. Fails with `session_not_found`.
    async fn get_session(&self, tenant: TenantId, session: &SessionRef) -> Result<Session>;
    /// Lists sessions, newest first.
    async fn list_sessions(
        &self,
        tenant: TenantId,
        status: Option<SessionStatus>,
        page: &PageRequest,
    ) -> Result<Page<Session>>;
    /// Updates a session. Fails with `session_model_locked` if the model would change after the first run was
    /// submitted.
    async fn update_session(
        &self,
        tenant: TenantId,
        session: SessionId,
        update: &SessionUpdate,
    ) -> Result<Changed<Session>>;
    /// Closes a session; idempotent, the second call appends no event.
    async fn close_session(&self, tenant: TenantId, session: SessionId) -> Result<Changed<Session>>;
    /// Deletes a session and its descendants with all dependent rows, and returns the deleted sessions. Fails with
    /// `session_busy` while one of them has an unfinished run.
    async fn delete_session(&self, tenant: TenantId, session: SessionId) -> Result<Vec<SessionId>>;
    /// Lists the messages of a session in transcript order.
    async fn list_messages(
        &self,
        tenant: TenantId,
        session: SessionId,
        page: &PageRequest,
    ) -> Result<Page<Message>>;
    /// Reads a text that a commit stored under its hash.
    async fn get_content(&self, tenant: TenantId, hash: ContentHash) -> Result<Option<String>>;
    /// Creates a workspace. Fails with `already_exists` if the tenant has a workspace with that name.
    async fn create_workspace(&self, workspace: &NewWorkspace) -> Result<Workspace>;
    /// Lists workspaces by name.
    async fn list_workspaces(&self, tenant: TenantId, page: &PageRequest) -> Result<Page<Workspace>>;
    /// Lists the workspaces of all tenants, each with its tenant's name, by age: at most `limit` after the given one. For
    /// operators.
    async fn list_all_workspaces(
        &self,
        after: Option<WorkspaceId>,
        limit: u32,
    ) -> Result<Vec<(String, Workspace)>>;
}

/// A changed value and the events that the change appended, for the caller to publish.
#[derive(Clone, Debug)]
pub struct Changed<T> {
    pub value: T,
    pub events: Appended,
}

/// What a change did to a session: events to publish, and whether a worker has to be woken.
#[derive(Clone, Debug)]
pub struct SessionChange {
    pub tenant: TenantId,
    pub session: SessionId,
    pub pool: Pool,
    /// The session has no owner and a run could start: publish a token.
    pub wake: bool,
    pub events: Appended,
    /// The attempt that was lost with its worker, if any.
    pub lost: Option<LostAttempt>,
}

/// An attempt that ended because its worker was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostAttempt {
    pub run: RunId,
    /// The epoch of the ownership that ended.
    pub epoch: Epoch,
    /// The number of the attempt.
    pub attempt: u32,
}

/// A session to create.
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

/// Changes of a session; `None` leaves a value as it is.
#[derive(Clone, Debug, Default)]
pub struct SessionUpdate {
    pub title: Option<String>,
    pub agent: Option<String>,
    pub model: Option<String>,
    /// Replaces all permissions, including the rules that `always` decisions added.
    pub permissions: Option<SessionPermissions>,
    /// If not empty, the session's revision must be one of these, or the update fails with `precondition_failed`.
    pub if_revision: Vec<String>,
}

/// A workspace to create.
#[derive(Clone, Debug)]
pub struct NewWorkspace {
    pub id: WorkspaceId,
    pub tenant: TenantId,
    pub name: String,
    /// The directory on the workers.
    pub root: String,
}
