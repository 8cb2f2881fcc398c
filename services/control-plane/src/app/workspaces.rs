//! Workspaces: the directories that sessions work in.

use std::{path::PathBuf, sync::Arc};

use remuda_domain::{
    Code, Error, WorkspaceId,
    error::Result,
    identity::{Operator, Principal, Tenant},
    limits,
    page::{Page, PageRequest},
    session::Workspace,
};
use remuda_store::NewWorkspace;

use super::App;

impl App {
    /// Registers a directory of the workers for a tenant. Whether the operator's configuration allows the directory is
    /// checked here as far as this process sees it, and by workers whenever it is used: they may be on other machines.
    pub async fn create_workspace(
        &self,
        caller: &Operator,
        tenant: &str,
        name: String,
        root: String,
    ) -> Result<Workspace> {
        limits::check_name("name", &name)?;
        limits::check_root("root", &root)?;
        let tenant = self.named_tenant(caller, tenant).await?;
        let missing =
            || Error::invalid("tenant", "expected the name of the tenant that the workspace is for");
        let tenant = tenant.ok_or_else(missing)?;
        let (roots, path) = (Arc::clone(&self.workspace_roots), PathBuf::from(&root));
        // Looking at directories may block, on a network file system for long.
        let admitted = tokio::task::spawn_blocking(move || roots.admit(&tenant.name, &path));
        let admitted =
            admitted.await.map_err(|error| Error::internal("a check failed").with_source(error))?;
        admitted.map_err(|refusal| refusal.for_operator().at("root"))?;
        let new = NewWorkspace { id: WorkspaceId::new(), tenant: tenant.id, name, root };
        self.store.create_workspace(&new).await
    }

    /// The tenant that an operator names, or the caller's own. An operator's key has none.
    pub(super) async fn named_tenant(&self, caller: &Operator, name: &str) -> Result<Option<Tenant>> {
        if name.is_empty() {
            let own = caller.tenant.map(|tenant| self.store.get_tenant(tenant));
            return futures::future::OptionFuture::from(own).await.transpose();
        }
        limits::check_name("tenant", name)?;
        let found = self.store.find_tenant(name).await?;
        let missing = || Error::new(Code::TenantNotFound, "there is no such tenant").at("tenant");
        Ok(Some(found.ok_or_else(missing)?))
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
