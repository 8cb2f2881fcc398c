use std::collections::BTreeSet;

use remuda_domain::{
    Error, error::Result, identity::Principal, page::PageRequest, permission::SessionPermissions,
    session::SessionStatus,
};
use remuda_proto::{convert, v1};
use remuda_store::{CancelScope, CancelledRuns, SessionUpdate};

use super::{Calls, page_size::fit};
use crate::app::SessionSpec;

fn cancelled(runs: &CancelledRuns) -> v1::CancelSessionResponse {
    let sessions: BTreeSet<String> = runs.changes.iter().map(|change| change.session.to_string()).collect();
    v1::CancelSessionResponse {
        ended_run_ids: runs.ended.iter().map(ToString::to_string).collect(),
        requested_run_ids: runs.requested.iter().map(|signal| signal.run.to_string()).collect(),
        session_ids: sessions.into_iter().collect(),
    }
}

pub(super) fn permissions(given: Option<v1::Permissions>) -> Result<Option<SessionPermissions>> {
    given.map(convert::session_permissions).transpose()
}

fn status_filter(number: i32) -> Result<Option<SessionStatus>> {
    match v1::SessionStatus::try_from(number) {
        Ok(v1::SessionStatus::Unspecified) => Ok(None),
        Ok(v1::SessionStatus::Open) => Ok(Some(SessionStatus::Open)),
        Ok(v1::SessionStatus::Closed) => Ok(Some(SessionStatus::Closed)),
        Err(_) => Err(Error::invalid("status", "expected open or closed")),
    }
}

impl Calls {
    pub(crate) async fn create_session(
        &self,
        caller: Principal,
        body: v1::CreateSessionRequest,
    ) -> Result<v1::CreateSessionResponse> {
        let spec = SessionSpec {
            name: body.name,
            title: body.title,
            workspace: body.workspace,
            pool: body.pool,
            parent: body.parent,
            execution: convert::execution_choice(body.execution)?,
            agent: body.agent,
            model: body.model,
            permissions: permissions(body.permissions)?.unwrap_or_default(),
            budget: body.budget.map(|limit| convert::limit("budget", limit)).transpose()?,
        };
        let session = self.app.create_session(&caller, spec).await?;
        Ok(v1::CreateSessionResponse { session: Some(session.into()) })
    }

    pub(crate) async fn get_session(
        &self,
        caller: Principal,
        body: v1::GetSessionRequest,
    ) -> Result<v1::GetSessionResponse> {
        let session = self.app.get_session(&caller, &body.session).await?;
        let (spent, tree_spent) = self.app.session_totals(&caller, session.id).await?;
        let session =
            v1::Session { spent: Some(spent.into()), tree_spent: Some(tree_spent.into()), ..session.into() };
        Ok(v1::GetSessionResponse { session: Some(session) })
    }

    pub(crate) async fn list_sessions(
        &self,
        caller: Principal,
        body: v1::ListSessionsRequest,
    ) -> Result<v1::ListSessionsResponse> {
        let page = PageRequest::parse(body.page_size, &body.page_token)?;
        let page = self.app.list_sessions(&caller, status_filter(body.status)?, &page).await?;
        Ok(v1::ListSessionsResponse {
            sessions: page.items.into_iter().map(Into::into).collect(),
            next_page_token: page.next.unwrap_or_default(),
        })
    }

    pub(crate) async fn update_session(
        &self,
        caller: Principal,
        body: v1::UpdateSessionRequest,
    ) -> Result<v1::UpdateSessionResponse> {
        let update = SessionUpdate {
            title: body.title,
            agent: body.agent,
            model: body.model,
            permissions: permissions(body.permissions)?,
            if_revision: body.if_revision,
        };
        let session = self.app.update_session(&caller, &body.session, update).await?;
        Ok(v1::UpdateSessionResponse { session: Some(session.into()) })
    }

    pub(crate) async fn list_child_sessions(
        &self,
        caller: Principal,
        body: v1::ListChildSessionsRequest,
    ) -> Result<v1::ListChildSessionsResponse> {
        let page = PageRequest::parse(body.page_size, &body.page_token)?;
        let page = self.app.list_child_sessions(&caller, &body.session, &page).await?;
        Ok(v1::ListChildSessionsResponse {
            sessions: page.items.into_iter().map(Into::into).collect(),
            next_page_token: page.next.unwrap_or_default(),
        })
    }

    pub(crate) async fn close_session(
        &self,
        caller: Principal,
        body: v1::CloseSessionRequest,
    ) -> Result<v1::CloseSessionResponse> {
        let session = self.app.close_session(&caller, &body.session, body.cancel_runs).await?;
        Ok(v1::CloseSessionResponse { session: Some(session.into()) })
    }

    pub(crate) async fn delete_session(
        &self,
        caller: Principal,
        body: v1::DeleteSessionRequest,
    ) -> Result<v1::DeleteSessionResponse> {
        let deleted = self.app.delete_session(&caller, &body.session, body.cancel_runs).await?;
        Ok(v1::DeleteSessionResponse { session_ids: deleted.iter().map(ToString::to_string).collect() })
    }

    pub(crate) async fn cancel_session(
        &self,
        caller: Principal,
        body: v1::CancelSessionRequest,
    ) -> Result<v1::CancelSessionResponse> {
        let scope = if body.tree { CancelScope::Tree } else { CancelScope::Session };
        let runs = self.app.cancel_session(&caller, &body.session, scope, body.reason).await?;
        Ok(cancelled(&runs))
    }

    pub(crate) async fn list_messages(
        &self,
        caller: Principal,
        body: v1::ListMessagesRequest,
    ) -> Result<v1::ListMessagesResponse> {
        let page = PageRequest::parse(body.page_size, &body.page_token)?;
        let page = self.app.list_messages(&caller, &body.session, &page).await?;
        let (messages, next_page_token) = fit(page, |message: &v1::Message| message.id.clone());
        Ok(v1::ListMessagesResponse { messages, next_page_token })
    }

    pub(crate) async fn list_queue(
        &self,
        caller: Principal,
        body: v1::ListQueueRequest,
    ) -> Result<v1::ListQueueResponse> {
        let page = PageRequest::parse(body.page_size, &body.page_token)?;
        let page = self.app.list_queue(&caller, &body.session, &page).await?;
        let (runs, next_page_token) = fit(page, |run: &v1::Run| run.seq.to_string());
        Ok(v1::ListQueueResponse { runs, next_page_token })
    }
}
