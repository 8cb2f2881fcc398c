use remuda_domain::identity::Scope;
use remuda_proto::v1::{self, approval_service_server::ApprovalService};
use tonic::{Request, Response, Status, async_trait};

use super::Api;

#[async_trait]
impl ApprovalService for Api {
    async fn get_approval(
        &self,
        request: Request<v1::GetApprovalRequest>,
    ) -> Result<Response<v1::GetApprovalResponse>, Status> {
        self.gate.answer(request, Scope::Read, |caller, body| self.calls.get_approval(caller, body)).await
    }

    async fn list_approvals(
        &self,
        request: Request<v1::ListApprovalsRequest>,
    ) -> Result<Response<v1::ListApprovalsResponse>, Status> {
        self.gate.answer(request, Scope::Read, |caller, body| self.calls.list_approvals(caller, body)).await
    }

    async fn decide_approval(
        &self,
        request: Request<v1::DecideApprovalRequest>,
    ) -> Result<Response<v1::DecideApprovalResponse>, Status> {
        self.gate
            .answer(request, Scope::Approve, |caller, body| self.calls.decide_approval(caller, body))
            .await
    }
}
