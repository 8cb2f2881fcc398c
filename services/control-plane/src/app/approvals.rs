//! Listing and deciding approvals.

use remuda_domain::{
    ApprovalId, Error, RunId,
    approval::{Approval, ApprovalState, DecisionRequest},
    error::Result,
    identity::Principal,
    page::{Page, PageRequest},
    tool::ToolCall,
};
use remuda_store::ApprovalFilter;
use serde_json::Value;

use super::App;

impl App {
    pub async fn get_approval(&self, caller: &Principal, approval: ApprovalId) -> Result<Approval> {
        self.store.get_approval(caller.tenant, approval).await
    }

    /// Newest first. `session` is an id, a name, or empty for all.
    pub async fn list_approvals(
        &self,
        caller: &Principal,
        state: Option<ApprovalState>,
        session: &str,
        run: Option<RunId>,
        page: &PageRequest,
    ) -> Result<Page<Approval>> {
        let session = match session {
            "" => None,
            session => Some(self.get_session(caller, session).await?.id),
        };
        self.store.list_approvals(caller.tenant, &ApprovalFilter { state, session, run }, page).await
    }

    /// Approves or denies a tool call, once, and resumes its run.
    pub async fn decide(
        &self,
        caller: &Principal,
        approval: ApprovalId,
        answer: DecisionRequest,
    ) -> Result<Approval> {
        if let Some(arguments) = &answer.arguments {
            let asked = self.store.get_approval(caller.tenant, approval).await?;
            self.check_edited(&asked, arguments)?;
        }
        let (app, caller) = (self.clone(), caller.clone());
        self.run_to_completion(async move {
            let decided = app.store.decide(&caller, approval, &answer).await?;
            app.announcer.announce_change(decided.change);
            Ok(decided.approval)
        })
        .await
    }

    /// Checks edited arguments early, for a direct error. Only workers know tools of MCP servers, so these are not
    /// checked.
    fn check_edited(&self, asked: &Approval, arguments: &Value) -> Result<()> {
        let request = &asked.request;
        if !self.tools.contains(&request.tool) {
            return Ok(());
        }
        let call = ToolCall {
            id: request.call,
            tool: request.tool.clone(),
            arguments: arguments.clone(),
            parallel: false,
            timeout: None,
        };
        // A tool's own error already names the field below `arguments`.
        (self.check_call)(&call)
            .map_err(|error: Error| if error.field().is_some() { error } else { error.at("arguments") })
    }
}
