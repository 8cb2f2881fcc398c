//! Callers and their scopes.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{
    Timestamp,
    error::{Code, Error, Result},
    ids::{ApiKeyId, TenantId},
};

/// What a key allows.
///
/// All scopes but `Operator` are those of one tenant: a key with them acts for its tenant and reaches nothing else.
/// `Operator` belongs to no tenant: it covers the fleet, and opens no session or run. So no key has both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    Read,
    Write,
    /// Decide on approvals.
    Approve,
    /// Administer the tenant.
    Admin,
    /// Manage the installation: workers, queues, background tasks, log filters and workspace directories.
    Operator,
}

impl Scope {
    pub const ALL: [Self; 5] = [Self::Read, Self::Write, Self::Approve, Self::Admin, Self::Operator];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Approve => "approve",
            Self::Admin => "admin",
            Self::Operator => "operator",
        }
    }

    /// Whether a key with this scope may make a call that requires `needed`. Write and approve include read. Admin and
    /// operator include nothing else.
    #[must_use]
    pub fn includes(self, needed: Self) -> bool {
        self == needed || (matches!(self, Self::Write | Self::Approve) && needed == Self::Read)
    }

    /// Fails unless a key may have these scopes: `operator` alone and without a tenant, the others with one.
    pub fn check_key(scopes: &[Self], has_tenant: bool) -> Result<()> {
        let message = match (scopes.contains(&Self::Operator), has_tenant) {
            _ if scopes.is_empty() => "expected at least one scope",
            (true, _) if scopes.iter().any(|scope| *scope != Self::Operator) => {
                "expected operator alone: a key of the operator opens no sessions; create another key for a tenant"
            }
            (true, true) => "expected no tenant: a key with the scope operator belongs to none",
            (false, false) => "expected operator: every other scope needs a tenant",
            (true, false) | (false, true) => return Ok(()),
        };
        Err(Error::invalid("scope", message))
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
            .ok_or_else(|| Error::invalid("scope", "expected read, write, approve, admin or operator"))
    }
}

/// Who authenticated, before it is known what the call requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    /// `None` for keys of operators.
    pub tenant: Option<TenantId>,
    /// Who acts, for the record: the key's name, or `local` without keys.
    pub subject: String,
    pub scopes: Vec<Scope>,
}

impl Actor {
    /// The caller without an API key, where none is required: whoever reaches the loopback address of their own server is
    /// its operator, and works for its tenant.
    #[must_use]
    pub fn local(tenant: TenantId) -> Self {
        Self { tenant: Some(tenant), subject: "local".to_owned(), scopes: Scope::ALL.to_vec() }
    }

    /// The caller of a call about one tenant's data. Fails without the scope, and for keys that belong to no tenant.
    pub fn in_tenant(self, scope: Scope) -> Result<Principal> {
        self.require(scope)?;
        let tenant = self.tenant.ok_or_else(|| denied(scope))?;
        Ok(Principal { tenant, subject: self.subject, scopes: self.scopes })
    }

    /// The caller of a call about the whole installation. Fails without the scope `operator`.
    pub fn into_operator(self) -> Result<Operator> {
        self.require(Scope::Operator)?;
        Ok(Operator { subject: self.subject, tenant: self.tenant })
    }

    fn require(&self, needed: Scope) -> Result<()> {
        require(&self.scopes, needed)
    }
}

fn require(held: &[Scope], needed: Scope) -> Result<()> {
    if held.iter().any(|scope| scope.includes(needed)) { Ok(()) } else { Err(denied(needed)) }
}

fn denied(needed: Scope) -> Error {
    Error::new(Code::PermissionDenied, format!("the request requires the scope {needed}"))
}

/// A caller that acts for its tenant. The tenant of a request comes only from here.
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
        require(&self.scopes, scope)
    }
}

/// A caller that manages the installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operator {
    /// Who acts, for the record.
    pub subject: String,
    /// The tenant that the caller acts for as well: only without keys, see [`Actor::local`].
    pub tenant: Option<TenantId>,
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
    /// `None` for keys with the scope `operator`.
    pub tenant: Option<TenantId>,
    pub name: String,
    pub scopes: Vec<Scope>,
    pub created_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    pub revoked_at: Option<Timestamp>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn actor(tenant: Option<TenantId>, scopes: &[Scope]) -> Actor {
        Actor { tenant, subject: "s".into(), scopes: scopes.to_vec() }
    }

    #[test]
    fn write_and_approve_include_read_and_nothing_else_includes_another_scope() {
        use Scope::{Approve, Read, Write};
        for held in Scope::ALL {
            for needed in Scope::ALL {
                let included = [(Write, Read), (Approve, Read)].contains(&(held, needed));
                assert_eq!(held.includes(needed), held == needed || included, "{held} and {needed}");
                let called = actor(Some(TenantId::new()), &[held]).in_tenant(needed);
                assert_eq!(called.is_ok(), held.includes(needed), "{held} and {needed}");
            }
        }
    }

    #[test]
    fn key_of_an_operator_reaches_no_tenant() {
        let operator = || actor(None, &[Scope::Operator]);
        assert_eq!(operator().into_operator().unwrap().tenant, None);
        for scope in Scope::ALL {
            assert_eq!(operator().in_tenant(scope).unwrap_err().code(), Code::PermissionDenied, "{scope}");
        }
        let admin = actor(Some(TenantId::new()), &[Scope::Write, Scope::Approve, Scope::Admin]);
        assert_eq!(admin.into_operator().unwrap_err().code(), Code::PermissionDenied);
    }

    #[test]
    fn scope_operator_stands_alone_and_without_a_tenant() {
        use Scope::{Admin, Operator, Write};
        for (scopes, has_tenant, valid) in [
            (&[Operator][..], false, true),
            (&[Operator], true, false),
            (&[Operator, Admin], false, false),
            (&[Write, Operator], true, false),
            (&[Write, Admin], true, true),
            (&[Admin], false, false),
            (&[], true, false),
        ] {
            assert_eq!(Scope::check_key(scopes, has_tenant).is_ok(), valid, "{scopes:?} {has_tenant}");
        }
    }
}
