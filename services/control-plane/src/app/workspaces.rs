//! Workspaces: the directories that sessions work in.

use remuda_domain::{
    Code, Error, WorkspaceId,
    error::Result,
    identity::Principal,
    limits,
    page::{Page, PageRequest},
    session::Workspace,
};
use remuda_store::NewWorkspace;

use super::App;

impl App {
    /// Registers a directory of the workers. It is not checked here: this process may be on another machine.
    pub async fn create_workspace(
        &self,
        caller: &Principal,
        name: String,
        root: String,
    ) -> Result<Workspace> {
        limits::check_name("name", &name)?;
        limits::check_root("root", &root)?;
        let new = NewWorkspace { id: WorkspaceId::new(), tenant: caller.tenant, name, root };
        self.store.create_workspace(&new).await
    }

    pub async fn get_workspace(&self, caller: &Principal, name: &str) -> Result<Workspace> {
        self.workspace("name", caller, name).await
    }

    /// By name.
    pub async fn list_workspaces(&self, caller: &Principal, page: &PageRequest) -> Result<Page<Workspace>> {
        // The page token is the name of a workspace.
        page.token.as_deref().map_or(Ok(()), |token| limits::check_name("page_token", token))?;
        self.store.list_workspaces(caller.tenant, page).await
    }

    /// The caller's workspace of that name. `field` is the request field that holds the name.
    pub(super) async fn workspace(&self, field: &str, caller: &Principal, name: &str) -> Result<Workspace> {
        limits::check_name(field, name)?;
        let found = self.store.find_workspace(caller.tenant, name).await?;
        found.ok_or_else(|| Error::new(Code::WorkspaceNotFound, "there is no such workspace").at(field))
    }
}
