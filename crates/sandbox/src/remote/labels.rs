//! Labels and names that identify our containers and volumes.
//!
//! Everything is labelled at creation, so that resources left by a crash are found. A container's labels
//! cannot change, but its name can: the name of a spare that was assigned to a session identifies the
//! session.

use std::collections::HashMap;

use remuda_domain::{SandboxId, WorkerId, execution::Holder};

use crate::traits::{EngineResource, EngineResourceKind};

pub(crate) const INSTALLATION: &str = "dev.remuda.installation";
pub(crate) const INSTANCE: &str = "dev.remuda.instance";
pub(crate) const WORKER: &str = "dev.remuda.worker";
pub(crate) const SANDBOX: &str = "dev.remuda.sandbox";
pub(crate) const TENANT: &str = "dev.remuda.tenant";
pub(crate) const SESSION: &str = "dev.remuda.session";
pub(crate) const EPOCH: &str = "dev.remuda.epoch";
pub(crate) const IMAGE: &str = "dev.remuda.image";
pub(crate) const DIGEST: &str = "dev.remuda.digest";

const NAME_PREFIX: &str = "remuda";

/// The creator of a resource, which is part of every label set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Creator {
    pub(crate) installation: String,
    /// Identifies one backend of one process.
    pub(crate) instance: String,
    pub(crate) worker: WorkerId,
}

impl Creator {
    pub(crate) fn labels(&self, sandbox: SandboxId, holder: Option<&Holder>) -> HashMap<String, String> {
        let mut labels = HashMap::from([
            (INSTALLATION.to_owned(), self.installation.clone()),
            (INSTANCE.to_owned(), self.instance.clone()),
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

/// A container's name. It contains the holder, for people and for finding a session's containers.
pub(crate) fn name(sandbox: SandboxId, holder: Option<&Holder>) -> String {
    match holder {
        None => format!("{NAME_PREFIX}-{sandbox}"),
        Some(Holder { tenant, session, epoch }) => {
            format!("{NAME_PREFIX}-{sandbox}-{tenant}-{session}-{epoch}")
        }
    }
}

/// Parses labels. `None` if the resource does not belong to this installation.
pub(crate) fn existing(
    installation: &str,
    handle: &str,
    kind: EngineResourceKind,
    labels: &HashMap<String, String>,
    names: &[String],
) -> Option<EngineResource> {
    if labels.get(INSTALLATION).is_none_or(|label| label != installation) {
        return None;
    }
    Some(EngineResource {
        handle: handle.to_owned(),
        kind,
        worker: labels.get(WORKER)?.parse().ok()?,
        sandbox: labels.get(SANDBOX)?.parse().ok()?,
        holder: labelled_holder(labels).or_else(|| names.iter().find_map(|name| named_holder(name))),
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

fn named_holder(name: &str) -> Option<Holder> {
    let mut parts = name.trim_start_matches('/').strip_prefix(NAME_PREFIX)?.strip_prefix('-')?.split('-');
    let _sandbox = parts.next()?;
    let (tenant, session, epoch) = (parts.next()?, parts.next()?, parts.next()?);
    Some(Holder { tenant: tenant.parse().ok()?, session: session.parse().ok()?, epoch: epoch.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use remuda_domain::{SessionId, TenantId};

    use super::*;

    fn creator() -> Creator {
        Creator { installation: "here".into(), instance: "one".into(), worker: WorkerId::new() }
    }

    fn read(labels: &HashMap<String, String>, names: &[String]) -> Option<EngineResource> {
        existing("here", "id", EngineResourceKind::Container, labels, names)
    }

    #[test]
    fn labels_and_names_are_read_back() {
        let (creator, sandbox) = (creator(), SandboxId::new());
        let holder = Holder { tenant: TenantId::new(), session: SessionId::new(), epoch: 7 };
        let spare = read(&creator.labels(sandbox, None), &[format!("/{}", name(sandbox, None))]).unwrap();
        assert_eq!((spare.worker, spare.sandbox, spare.holder), (creator.worker, sandbox, None));
        let held = read(&creator.labels(sandbox, Some(&holder)), &[]).unwrap();
        assert_eq!(held.holder, Some(holder));
        let given =
            read(&creator.labels(sandbox, None), &[format!("/{}", name(sandbox, Some(&holder)))]).unwrap();
        assert_eq!(given.holder, Some(holder));
    }

    #[test]
    fn foreign_or_invalid_labels_are_ignored() {
        let (creator, sandbox) = (creator(), SandboxId::new());
        let mut labels = creator.labels(sandbox, None);
        assert!(existing("elsewhere", "id", EngineResourceKind::Container, &labels, &[]).is_none());
        labels.insert(WORKER.into(), "nonsense".into());
        assert!(read(&labels, &[]).is_none());
        assert!(read(&HashMap::new(), &[name(sandbox, None)]).is_none());
    }
}
