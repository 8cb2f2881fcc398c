use remuda_domain::identity::Scope;
use remuda_proto::v1::{self, workspace_service_server::WorkspaceService};
use tonic::{Request, Response, Status, async_trait};

use super::Api;

#[async_trait]
impl WorkspaceService for Api {
    async fn create_workspace(
        &self,
        request: Request<v1::CreateWorkspaceRequest>,
    ) -> Result<Response<v1::CreateWorkspaceResponse>, Status> {
        self.gate.answer_operator(request, |caller, body| self.calls.create_workspace(caller, body)).await
    }

    async fn get_workspace(
        &self,
        request: Request<v1::GetWorkspaceRequest>,
    ) -> Result<Response<v1::GetWorkspaceResponse>, Status> {
        self.gate.answer(request, Scope::Read, |caller, body| self.calls.get_workspace(caller, body)).await
    }

    async fn list_workspaces(
        &self,
        request: Request<v1::ListWorkspacesRequest>,
    ) -> Result<Response<v1::ListWorkspacesResponse>, Status> {
        self.gate.answer(request, Scope::Read, |caller, body| self.calls.list_workspaces(caller, body)).await
    }
}
