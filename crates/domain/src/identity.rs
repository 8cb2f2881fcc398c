//! Callers and their scopes.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{
    Timestamp,
    error::{Code, Error, Result},
    ids::{ApiKeyId, TenantId},
};

/// What a key allows. `Admin` covers the fleet and the keys of all tenants. It does not widen access to sessions and
/// runs, which is always limited to the key's own tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    Read,
    Write,
    /// Decide on approvals.
    Approve,
    Admin,
}

impl Scope {
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Approve, Self::Admin];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Approve => "approve",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Scope {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|scope| scope.as_str() == text)
            .ok_or_else(|| Error::invalid("scope", "expected read, write, approve or admin"))
    }
}

/// An authenticated caller. The tenant of a request comes only from here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    pub tenant: TenantId,
    /// Who acts, for the record: the key's name, or `local` without keys.
    pub subject: String,
    pub scopes: Vec<Scope>,
}

impl Principal {
    /// Fails unless the caller has the scope. Write and approve include read.
    pub fn require(&self, scope: Scope) -> Result<()> {
        let includes = |held: &Scope| {
            *held == scope || (matches!(held, Scope::Write | Scope::Approve) && scope == Scope::Read)
        };
        let covered = self.scopes.iter().any(includes);
        if covered {
            return Ok(());
        }
        Err(Error::new(Code::PermissionDenied, format!("the request requires the scope {scope}")))
    }
}

/// A tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    pub id: TenantId,
    pub name: String,
    pub created_at: Timestamp,
}

/// An API key as stored: the secret only as a hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    pub id: ApiKeyId,
    pub tenant: TenantId,
    pub name: String,
    pub scopes: Vec<Scope>,
    pub created_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    pub revoked_at: Option<Timestamp>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_includes_read_and_admin_includes_neither() {
        let principal = |scopes: &[Scope]| Principal {
            tenant: TenantId::new(),
            subject: "s".into(),
            scopes: scopes.to_vec(),
        };
        assert!(principal(&[Scope::Write]).require(Scope::Read).is_ok());
        assert!(principal(&[Scope::Read]).require(Scope::Write).is_err());
        let denied = principal(&[Scope::Admin]).require(Scope::Read).unwrap_err();
        assert_eq!(denied.code(), Code::PermissionDenied);
    }
}
