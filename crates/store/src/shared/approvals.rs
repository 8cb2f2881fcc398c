//! Calls that wait for a person.

use async_trait::async_trait;
use remuda_domain::{
    ApprovalId, Code, Error, TenantId,
    approval::{Answer, Approval},
    error::Result,
    identity::Principal,
    page::{Page, PageRequest},
};

use super::store::SqlStore;
use crate::{ApprovalFilter, Approvals, Decided};

#[async_trait]
impl Approvals for SqlStore {
    async fn get_approval(&self, _tenant: TenantId, _approval: ApprovalId) -> Result<Approval> {
        Err(Error::new(Code::Unimplemented, "get_approval"))
    }

    async fn list_approvals(
        &self,
        _tenant: TenantId,
        _filter: &ApprovalFilter,
        _page: &PageRequest,
    ) -> Result<Page<Approval>> {
        Err(Error::new(Code::Unimplemented, "list_approvals"))
    }

    async fn decide(&self, _caller: &Principal, _approval: ApprovalId, _answer: &Answer) -> Result<Decided> {
        Err(Error::new(Code::Unimplemented, "decide"))
    }
}
