use remuda_domain::{approval::Answer, identity::Scope, page::PageRequest};
use remuda_proto::v1::{self, approval_service_server::ApprovalService};
use tonic::{Request, Response, Status, async_trait};

use super::{Api, pages::fit};

#[async_trait]
impl ApprovalService for Api {
    async fn get_approval(
        &self,
        request: Request<v1::GetApprovalRequest>,
    ) -> Result<Response<v1::GetApprovalResponse>, Status> {
        self.gate
            .answer(request, Scope::Read, |caller, body| async move {
                let approval = self.app.get_approval(&caller, body.approval_id.parse()?).await?;
                Ok(v1::GetApprovalResponse { approval: Some(approval.into()) })
            })
            .await
    }

    async fn list_approvals(
        &self,
        request: Request<v1::ListApprovalsRequest>,
    ) -> Result<Response<v1::ListApprovalsResponse>, Status> {
        self.gate
            .answer(request, Scope::Read, |caller, body| async move {
                let page = PageRequest::parse(body.page_size, &body.page_token)?;
                let state = if body.state.is_empty() { None } else { Some(body.state.parse()?) };
                let run = if body.run_id.is_empty() { None } else { Some(body.run_id.parse()?) };
                let page = self.app.list_approvals(&caller, state, &body.session, run, &page).await?;
                let (approvals, next_page_token) = fit(page, |approval: &v1::Approval| approval.id.clone());
                Ok(v1::ListApprovalsResponse { approvals, next_page_token })
            })
            .await
    }

    async fn decide_approval(
        &self,
        request: Request<v1::DecideApprovalRequest>,
    ) -> Result<Response<v1::DecideApprovalResponse>, Status> {
        self.gate
            .answer(request, Scope::Approve, |caller, body| async move {
                let id = body.approval_id.parse()?;
                let approval = self.app.decide(&caller, id, Answer::try_from(body)?).await?;
                Ok(v1::DecideApprovalResponse { approval: Some(approval.into()) })
            })
            .await
    }
}
