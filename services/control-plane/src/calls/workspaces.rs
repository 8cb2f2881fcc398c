use remuda_domain::{
    error::Result,
    identity::{Operator, Principal},
    page::PageRequest,
};
use remuda_proto::v1;

use super::Calls;

impl Calls {
    pub(crate) async fn create_workspace(
        &self,
        caller: Operator,
        body: v1::CreateWorkspaceRequest,
    ) -> Result<v1::CreateWorkspaceResponse> {
        let workspace = self.app.create_workspace(&caller, &body.tenant, body.name, body.root).await?;
        Ok(v1::CreateWorkspaceResponse { workspace: Some(workspace.into()) })
    }

    pub(crate) async fn get_workspace(
        &self,
        caller: Principal,
        body: v1::GetWorkspaceRequest,
    ) -> Result<v1::GetWorkspaceResponse> {
        let workspace = self.app.get_workspace(&caller, &body.name).await?;
        Ok(v1::GetWorkspaceResponse { workspace: Some(workspace.into()) })
    }

    pub(crate) async fn list_workspaces(
        &self,
        caller: Principal,
        body: v1::ListWorkspacesRequest,
    ) -> Result<v1::ListWorkspacesResponse> {
        let page = PageRequest::parse(body.page_size, &body.page_token)?;
        let page = self.app.list_workspaces(&caller, &page).await?;
        Ok(v1::ListWorkspacesResponse {
            workspaces: page.items.into_iter().map(Into::into).collect(),
            next_page_token: page.next.unwrap_or_default(),
        })
    }
}
