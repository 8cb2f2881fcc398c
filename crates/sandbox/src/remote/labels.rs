//! Labels that identify our instances and what they share.
//!
//! Everything is labelled at creation, so that resources left by a crash are found.

use std::collections::HashMap;

use remuda_domain::{SandboxId, WorkerId, execution::Holder};

use super::provisioner::FoundResource;
use crate::traits::{EngineResource, EngineResourceKind};

pub(super) const INSTALLATION: &str = "dev.remuda.installation";
/// Identifies one backend of one process.
pub(super) const BACKEND: &str = "dev.remuda.instance";
pub(super) const WORKER: &str = "dev.remuda.worker";
pub(super) const SANDBOX: &str = "dev.remuda.sandbox";
pub(super) const TENANT: &str = "dev.remuda.tenant";
pub(super) const SESSION: &str = "dev.remuda.session";
pub(super) const EPOCH: &str = "dev.remuda.epoch";
pub(super) const IMAGE: &str = "dev.remuda.image";
pub(super) const DIGEST: &str = "dev.remuda.digest";

/// The creator of a resource, which is part of every label set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Creator {
    pub installation: String,
    /// Identifies one backend of one process.
    pub backend: String,
    pub worker: WorkerId,
}

impl Creator {
    /// The labels of a resource. `holder` is `None` for spares, and for what instances share.
    #[must_use]
    pub fn labels(&self, sandbox: SandboxId, holder: Option<&Holder>) -> HashMap<String, String> {
        let mut labels = HashMap::from([
            (INSTALLATION.to_owned(), self.installation.clone()),
            (BACKEND.to_owned(), self.backend.clone()),
            (WORKER.to_owned(), self.worker.to_string()),
            (SANDBOX.to_owned(), sandbox.to_string()),
        ]);
        if let Some(Holder { tenant, session, epoch }) = holder {
            labels.insert(TENANT.to_owned(), tenant.to_string());
            labels.insert(SESSION.to_owned(), session.to_string());
            labels.insert(EPOCH.to_owned(), epoch.to_string());
        }
        labels
    }
}

/// Parses labels. `None` if the resource does not belong to this installation.
pub(super) fn existing(
    installation: &str,
    kind: EngineResourceKind,
    found: &FoundResource,
) -> Option<EngineResource> {
    let FoundResource { handle, labels, assigned } = found;
    if labels.get(INSTALLATION).is_none_or(|label| label != installation) {
        return None;
    }
    Some(EngineResource {
        handle: handle.clone(),
        kind,
        worker: labels.get(WORKER)?.parse().ok()?,
        sandbox: labels.get(SANDBOX)?.parse().ok()?,
        holder: labelled_holder(labels).or(*assigned),
        ours: false,
    })
}

fn labelled_holder(labels: &HashMap<String, String>) -> Option<Holder> {
    Some(Holder {
        tenant: labels.get(TENANT)?.parse().ok()?,
        session: labels.get(SESSION)?.parse().ok()?,
        epoch: labels.get(EPOCH)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use remuda_domain::{SessionId, TenantId};

    use super::*;

    fn creator() -> Creator {
        Creator { installation: "here".into(), backend: "one".into(), worker: WorkerId::new() }
    }

    fn read_in(
        installation: &str,
        labels: HashMap<String, String>,
        assigned: Option<Holder>,
    ) -> Option<EngineResource> {
        let found = FoundResource { handle: "id".into(), labels, assigned };
        existing(installation, EngineResourceKind::Container, &found)
    }

    #[test]
    fn labels_are_read_back() {
        let (creator, sandbox) = (creator(), SandboxId::new());
        let holder = Holder { tenant: TenantId::new(), session: SessionId::new(), epoch: 7 };
        let spare = read_in("here", creator.labels(sandbox, None), None).unwrap();
        assert_eq!((spare.worker, spare.sandbox, spare.holder), (creator.worker, sandbox, None));
        let held = read_in("here", creator.labels(sandbox, Some(&holder)), None).unwrap();
        assert_eq!(held.holder, Some(holder));
        let given = read_in("here", creator.labels(sandbox, None), Some(holder)).unwrap();
        assert_eq!(given.holder, Some(holder));
    }

    #[test]
    fn foreign_or_invalid_labels_are_ignored() {
        let (creator, sandbox) = (creator(), SandboxId::new());
        let mut labels = creator.labels(sandbox, None);
        assert!(read_in("elsewhere", labels.clone(), None).is_none());
        labels.insert(WORKER.into(), "nonsense".into());
        assert!(read_in("here", labels, None).is_none());
        assert!(read_in("here", HashMap::new(), None).is_none());
    }
}
