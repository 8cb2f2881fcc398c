//! Runs below runs.

use async_trait::async_trait;
use remuda_domain::{
    Code, Error, RunId, SessionId, TenantId,
    budget::Total,
    error::Result,
    page::{Page, PageRequest},
    session::Session,
};

use super::store::SqlStore;
use crate::{CancelledRuns, ChildReport, SessionChange, Trees};

#[async_trait]
impl Trees for SqlStore {
    async fn look_at_children(&self, _tenant: TenantId, _runs: &[RunId]) -> Result<Vec<ChildReport>> {
        Err(Error::new(Code::Unimplemented, "look_at_children"))
    }

    async fn settle_parked(&self, _tenant: TenantId, _run: RunId) -> Result<Option<SessionChange>> {
        Err(Error::new(Code::Unimplemented, "settle_parked"))
    }

    async fn cancel_children(&self, _tenant: TenantId, _run: RunId, _reason: &str) -> Result<CancelledRuns> {
        Err(Error::new(Code::Unimplemented, "cancel_children"))
    }

    async fn list_child_sessions(
        &self,
        _tenant: TenantId,
        _session: SessionId,
        _page: &PageRequest,
    ) -> Result<Page<Session>> {
        Err(Error::new(Code::Unimplemented, "list_child_sessions"))
    }

    async fn session_totals(&self, _tenant: TenantId, _session: SessionId) -> Result<(Total, Total)> {
        Err(Error::new(Code::Unimplemented, "session_totals"))
    }

    async fn run_totals(&self, _tenant: TenantId, _run: RunId) -> Result<(Total, Total)> {
        Err(Error::new(Code::Unimplemented, "run_totals"))
    }
}
