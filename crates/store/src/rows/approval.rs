//! Approval rows.

use remuda_domain::{ApprovalId, RunId, SessionId, TenantId, approval::Approval, error::Result};
use sqlx_macros::FromRow;
use uuid::Uuid;

use crate::{
    error::{corrupt, parse},
    time::DbTime,
};

#[derive(Clone, Debug, FromRow)]
pub(crate) struct ApprovalRow {
    pub(crate) id: Uuid,
    tenant_id: Uuid,
    pub(crate) session_id: Uuid,
    pub(crate) run_id: Uuid,
    state: String,
    request: String,
    decision: Option<String>,
    created_at: DbTime,
    expires_at: Option<DbTime>,
}

impl ApprovalRow {
    pub(crate) fn into_approval(self) -> Result<Approval> {
        Ok(Approval {
            id: ApprovalId::from_uuid(self.id),
            tenant: TenantId::from_uuid(self.tenant_id),
            session: SessionId::from_uuid(self.session_id),
            run: RunId::from_uuid(self.run_id),
            request: parse("request", &self.request)?,
            state: self.state.parse().map_err(|_| corrupt("approval"))?,
            created_at: self.created_at.0,
            expires_at: self.expires_at.map(|at| at.0),
            decision: self.decision.as_deref().map(|text| parse("decision", text)).transpose()?,
        })
    }
}
