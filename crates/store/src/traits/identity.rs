//! Tenants and API keys.

use async_trait::async_trait;
use remuda_domain::{
    ApiKeyId, TenantId, Timestamp,
    error::Result,
    identity::{ApiKey, Scope, Tenant},
};

/// Tenants and API keys.
#[async_trait]
pub trait Identity {
    /// Returns the tenant with this name. Creates it, with a default workspace rooted at `root`, if it does not exist.
    async fn ensure_tenant(&self, name: &str, root: &str) -> Result<Tenant>;
    async fn find_tenant(&self, name: &str) -> Result<Option<Tenant>>;
    /// Fails with `tenant_not_found`.
    async fn get_tenant(&self, tenant: TenantId) -> Result<Tenant>;
    async fn create_key(&self, key: &NewKey) -> Result<ApiKey>;
    /// Finds a key by the hash of its secret, unless it is revoked or expired.
    async fn find_key(&self, secret_hash: &[u8; 32]) -> Result<Option<ApiKey>>;
    /// Lists keys by age, revoked and expired ones included.
    async fn list_keys(&self, keys: KeyOwner) -> Result<Vec<ApiKey>>;
    /// Revokes a key; idempotent. Fails with `key_not_found` for a key of another owner as for one that does not exist.
    async fn revoke_key(&self, keys: KeyOwner, key: ApiKeyId) -> Result<ApiKey>;
}

/// Whose keys are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOwner {
    /// All keys: those of every tenant, and those of operators.
    Anyone,
    Tenant(TenantId),
}

#[derive(Clone, Debug)]
pub struct NewKey {
    /// `None` for a key with the scope `operator`, see [`Scope::check_key`].
    pub tenant: Option<TenantId>,
    pub name: String,
    pub secret_hash: [u8; 32],
    pub scopes: Vec<Scope>,
    pub expires_at: Option<Timestamp>,
}
