use remuda_domain::{approval::DecisionRequest, error::Result, identity::Principal, page::PageRequest};
use remuda_proto::v1;

use super::{Calls, page_size::fit};

impl Calls {
    pub(crate) async fn get_approval(
        &self,
        caller: Principal,
        body: v1::GetApprovalRequest,
    ) -> Result<v1::GetApprovalResponse> {
        let approval = self.app.get_approval(&caller, body.approval_id.parse()?).await?;
        Ok(v1::GetApprovalResponse { approval: Some(approval.into()) })
    }

    pub(crate) async fn list_approvals(
        &self,
        caller: Principal,
        body: v1::ListApprovalsRequest,
    ) -> Result<v1::ListApprovalsResponse> {
        let page = PageRequest::parse(body.page_size, &body.page_token)?;
        let state = if body.state.is_empty() { None } else { Some(body.state.parse()?) };
        let run = if body.run_id.is_empty() { None } else { Some(body.run_id.parse()?) };
        let page = self.app.list_approvals(&caller, state, &body.session, run, &page).await?;
        let (approvals, next_page_token) = fit(page, |approval: &v1::Approval| approval.id.clone());
        Ok(v1::ListApprovalsResponse { approvals, next_page_token })
    }

    pub(crate) async fn decide_approval(
        &self,
        caller: Principal,
        body: v1::DecideApprovalRequest,
    ) -> Result<v1::DecideApprovalResponse> {
        let id = body.approval_id.parse()?;
        let approval = self.app.decide(&caller, id, DecisionRequest::try_from(body)?).await?;
        Ok(v1::DecideApprovalResponse { approval: Some(approval.into()) })
    }
}
