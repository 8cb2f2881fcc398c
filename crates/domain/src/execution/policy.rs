//! What tenants may use.

use std::collections::BTreeMap;

use super::{BackendKind, ExecutionChoice, ExecutionPolicy, NO_NETWORK, ResourceLimits, WorkspaceAccess};
use crate::{
    error::{Code, Error, Result},
    permission::PermissionRule,
};

/// The operator's policies, by tenant.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policies {
    /// For tenants without a policy of their own.
    pub default: TenantPolicy,
    /// By tenant name.
    pub tenants: BTreeMap<String, TenantPolicy>,
}

impl Policies {
    #[must_use]
    pub fn of(&self, tenant: &str) -> &TenantPolicy {
        self.tenants.get(tenant).unwrap_or(&self.default)
    }

    /// Whether any tenant may use the backend.
    #[must_use]
    pub fn allow(&self, backend: BackendKind) -> bool {
        std::iter::once(&self.default)
            .chain(self.tenants.values())
            .any(|policy| policy.backends.contains(&backend))
    }
}

/// What the sessions of one tenant may choose from. The first of each list is the default.
#[derive(Clone, Debug, PartialEq)]
pub struct TenantPolicy {
    pub backends: Vec<BackendKind>,
    /// Patterns in which `*` matches anything.
    pub images: Vec<String>,
    /// The default image.
    pub image: Option<String>,
    /// In addition to none.
    pub networks: Vec<String>,
    pub workspace: Vec<WorkspaceAccess>,
    pub limits: ResourceLimits,
    /// Permission rules of its agents, applied after the platform's.
    pub permissions: Vec<PermissionRule>,
}

impl Default for TenantPolicy {
    /// Allows everything: suitable for a machine with one user.
    fn default() -> Self {
        Self {
            backends: vec![BackendKind::Local, BackendKind::Docker, BackendKind::None],
            images: vec!["*".to_owned()],
            image: None,
            networks: Vec::new(),
            workspace: vec![WorkspaceAccess::Mount, WorkspaceAccess::Copy],
            limits: ResourceLimits::default(),
            permissions: Vec::new(),
        }
    }
}

impl TenantPolicy {
    /// Decides the effective settings of a session. Errors name the field of the choice.
    pub fn decide(&self, choice: &ExecutionChoice) -> Result<ExecutionPolicy> {
        let backend = self.backend(choice.backend)?;
        if !backend.has_instances() {
            let unused = [("image", choice.image.is_some()), ("network", choice.network.is_some())];
            if let Some((field, _)) = unused.iter().find(|(_, is_set)| *is_set) {
                let message = format!("expected none: the {} backend does not use it", backend.as_str());
                return Err(Error::invalid(*field, message));
            }
        }
        let image = if backend.has_instances() { Some(self.image(choice.image.as_deref())?) } else { None };
        Ok(ExecutionPolicy {
            backend,
            image,
            network: self.network(choice.network.as_deref())?,
            workspace: self.workspace(choice.workspace)?,
            limits: self.limits,
        })
    }

    fn backend(&self, requested: Option<BackendKind>) -> Result<BackendKind> {
        let allowed = || self.backends.iter().map(|kind| kind.as_str()).collect::<Vec<_>>().join(", ");
        match requested {
            // Executing nothing is always allowed.
            Some(BackendKind::None) => Ok(BackendKind::None),
            Some(kind) if self.backends.contains(&kind) => Ok(kind),
            Some(_) => {
                let message = format!("expected one of those allowed: {}", allowed());
                Err(Error::new(Code::BackendNotAllowed, message).at("backend"))
            }
            None => Ok(self.backends.first().copied().unwrap_or(BackendKind::None)),
        }
    }

    fn image(&self, requested: Option<&str>) -> Result<String> {
        let Some(image) = requested.or(self.image.as_deref()) else {
            return Err(Error::invalid("image", "expected the name of an image: there is no default one"));
        };
        check_image("image", image)?;
        if self.images.iter().any(|pattern| matches(pattern, image)) {
            return Ok(image.to_owned());
        }
        let message = format!("expected an image like {}", self.images.join(", "));
        Err(Error::new(Code::ImageNotAllowed, message).at("image"))
    }

    fn network(&self, requested: Option<&str>) -> Result<String> {
        let network = requested.unwrap_or(NO_NETWORK);
        if network == NO_NETWORK || self.networks.iter().any(|allowed| allowed == network) {
            return Ok(network.to_owned());
        }
        let message = format!("expected one of those allowed: {NO_NETWORK} {}", self.networks.join(", "));
        Err(Error::new(Code::BackendNotAllowed, message.trim_end()).at("network"))
    }

    fn workspace(&self, requested: Option<WorkspaceAccess>) -> Result<WorkspaceAccess> {
        match requested {
            Some(access) if self.workspace.contains(&access) => Ok(access),
            Some(_) => {
                let allowed: Vec<&str> = self.workspace.iter().map(|access| access.as_str()).collect();
                let message = format!("expected one of those allowed: {}", allowed.join(", "));
                Err(Error::new(Code::BackendNotAllowed, message).at("workspace_access"))
            }
            None => Ok(self.workspace.first().copied().unwrap_or_default()),
        }
    }
}

/// Rejects texts that cannot be an image name: it is passed to the engine unchanged.
pub fn check_image(field: &str, image: &str) -> Result<()> {
    const MAX_BYTES: usize = 512;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:@".contains(&byte);
    let starts_well = image.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if image.len() > MAX_BYTES || !starts_well || !image.bytes().all(plain) || image.contains("..") {
        return Err(Error::invalid(
            field,
            "expected the name of an image, like python:3.12 or team/tools@sha256:…",
        ));
    }
    Ok(())
}

/// Whether a text matches a pattern in which `*` matches anything.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(backend: Option<BackendKind>, image: Option<&str>) -> ExecutionChoice {
        ExecutionChoice { backend, image: image.map(str::to_owned), ..ExecutionChoice::default() }
    }

    fn rejection(policy: &TenantPolicy, choice: &ExecutionChoice) -> (Code, String) {
        let error = policy.decide(choice).unwrap_err();
        (error.code(), error.field().unwrap_or_default().to_owned())
    }

    #[test]
    fn star_matches_anything() {
        for (pattern, text, expected) in [
            ("*", "anything", true),
            ("python:*", "python:3.12", true),
            ("python:*", "xpython:3.12", false),
            ("python:3.12", "python:3.12", true),
            ("python:3.12", "python:3.123", false),
            ("*/tools:*-slim", "team/tools:1-slim", true),
            ("*/tools:*-slim", "team/tools:1-slim-x", false),
            ("a*a", "a", false),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn backend_is_allowed_if_any_tenant_may_use_it() {
        let only = |backend| TenantPolicy { backends: vec![backend], ..TenantPolicy::default() };
        let mut policies = Policies { default: only(BackendKind::Docker), tenants: BTreeMap::new() };
        assert!(policies.allow(BackendKind::Docker) && !policies.allow(BackendKind::Local));
        policies.tenants.insert("acme".to_owned(), only(BackendKind::Local));
        assert!(policies.allow(BackendKind::Local));
        assert!(Policies::default().allow(BackendKind::Local));
    }

    #[test]
    fn session_gets_its_choice_or_the_first_of_each_list() {
        let policy = TenantPolicy::default();
        assert_eq!(policy.decide(&ExecutionChoice::default()).unwrap(), ExecutionPolicy::default());
        let docker = policy.decide(&choice(Some(BackendKind::Docker), Some("busybox:1"))).unwrap();
        assert_eq!(docker.image.as_deref(), Some("busybox:1"));
        assert_eq!((docker.network.as_str(), docker.workspace), ("none", WorkspaceAccess::Mount));
    }

    #[test]
    fn disallowed_choice_is_rejected_with_its_field() {
        let policy = TenantPolicy {
            backends: vec![BackendKind::Docker],
            images: vec!["python:*".to_owned()],
            networks: vec!["egress".to_owned()],
            workspace: vec![WorkspaceAccess::Copy],
            ..TenantPolicy::default()
        };
        let docker = |image| choice(Some(BackendKind::Docker), image);
        assert_eq!(
            rejection(&policy, &choice(Some(BackendKind::Local), None)),
            (Code::BackendNotAllowed, "backend".into())
        );
        assert_eq!(rejection(&policy, &docker(Some("ruby:3"))), (Code::ImageNotAllowed, "image".into()));
        assert_eq!(rejection(&policy, &docker(None)), (Code::InvalidArgument, "image".into()));
        let network = ExecutionChoice { network: Some("host".into()), ..docker(Some("python:3")) };
        assert_eq!(rejection(&policy, &network), (Code::BackendNotAllowed, "network".into()));
        let mount = ExecutionChoice { workspace: Some(WorkspaceAccess::Mount), ..docker(Some("python:3")) };
        assert_eq!(rejection(&policy, &mount), (Code::BackendNotAllowed, "workspace_access".into()));
        let allowed = ExecutionChoice { network: Some("egress".into()), ..docker(Some("python:3")) };
        let decided = policy.decide(&allowed).unwrap();
        assert_eq!((decided.network.as_str(), decided.workspace), ("egress", WorkspaceAccess::Copy));
        assert_eq!(policy.decide(&choice(Some(BackendKind::None), None)).unwrap().backend, BackendKind::None);
    }

    #[test]
    fn invalid_image_names_are_rejected() {
        for image in
            ["", "--privileged", "-v /:/host", "a b", "../x", "a/../b", "x\n", "${HOME}", &"x".repeat(600)]
        {
            assert!(check_image("image", image).is_err(), "{image:?}");
        }
        for image in ["busybox", "python:3.12", "reg.example:5000/a/b@sha256:0123abcd", "a_b.c-d:1"] {
            assert!(check_image("image", image).is_ok(), "{image:?}");
        }
        let local = choice(Some(BackendKind::Local), Some("busybox"));
        assert_eq!(rejection(&TenantPolicy::default(), &local), (Code::InvalidArgument, "image".into()));
    }
}
