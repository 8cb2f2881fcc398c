//! Sessions and what hangs on them.

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
    /// Deletes a session, those below it, and everything that hangs on them; says which sessions these were. Fails with
    /// `session_busy` while one of them has an unfinished run.
    async fn delete_session(&self, tenant: TenantId, session: SessionId) -> Result<Vec<SessionId>>;
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
    pub events: Appended,
}

/// What a change did to a session that the fleet should hear of.
#[derive(Clone, Debug)]
pub struct SessionChange {
    pub tenant: TenantId,
    pub session: SessionId,
    pub pool: Pool,
    /// Nobody owns the session and a run of it could start, so a worker should be woken.
    pub wake: bool,
    pub events: Appended,
    /// The attempt that was lost with a worker, if one was.
    pub lost: Option<Lost>,
}

/// What a lost worker was at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    pub run: RunId,
    /// The ownership that ended.
    pub epoch: Epoch,
    /// Which start of the run it was.
    pub attempt: u32,
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
    /// Only if its revision is one of these, else `precondition_failed`. Whatever it is when empty.
    pub if_revision: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct NewWorkspace {
    pub id: WorkspaceId,
    pub tenant: TenantId,
    pub name: String,
    /// The directory on the workers.
    pub root: String,
}
