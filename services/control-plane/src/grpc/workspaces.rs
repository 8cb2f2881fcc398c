use remuda_domain::{identity::Scope, page::PageRequest};
use remuda_proto::v1::{self, workspace_service_server::WorkspaceService};
use tonic::{Request, Response, Status, async_trait};

use super::Api;

#[async_trait]
impl WorkspaceService for Api {
    async fn create_workspace(
        &self,
        request: Request<v1::CreateWorkspaceRequest>,
    ) -> Result<Response<v1::CreateWorkspaceResponse>, Status> {
        self.gate
            .answer(request, Scope::Admin, |caller, body| async move {
                let workspace = self.app.create_workspace(&caller, body.name, body.root).await?;
                Ok(v1::CreateWorkspaceResponse { workspace: Some(workspace.into()) })
            })
            .await
    }

    async fn get_workspace(
        &self,
        request: Request<v1::GetWorkspaceRequest>,
    ) -> Result<Response<v1::GetWorkspaceResponse>, Status> {
        self.gate
            .answer(request, Scope::Read, |caller, body| async move {
                let workspace = self.app.get_workspace(&caller, &body.name).await?;
                Ok(v1::GetWorkspaceResponse { workspace: Some(workspace.into()) })
            })
            .await
    }

    async fn list_workspaces(
        &self,
        request: Request<v1::ListWorkspacesRequest>,
    ) -> Result<Response<v1::ListWorkspacesResponse>, Status> {
        self.gate
            .answer(request, Scope::Read, |caller, body| async move {
                let page = PageRequest::parse(body.page_size, &body.page_token)?;
                let page = self.app.list_workspaces(&caller, &page).await?;
                Ok(v1::ListWorkspacesResponse {
                    workspaces: page.items.into_iter().map(Into::into).collect(),
                    next_page_token: page.next.unwrap_or_default(),
                })
            })
            .await
    }
}
