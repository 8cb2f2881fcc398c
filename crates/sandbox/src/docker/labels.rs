//! How we know again what we made.
//!
//! Everything is labelled when it is created, so that even what a crash left half-made is found. The labels of a container
//! cannot change, but its name can: a spare one that was given to a session tells so by its name.

use std::collections::HashMap;

use remuda_domain::{SandboxId, WorkerId, execution::Holder};

use crate::traits::{Existing, ExistingKind};

pub(super) const INSTALLATION: &str = "dev.remuda.installation";
pub(super) const INSTANCE: &str = "dev.remuda.instance";
pub(super) const WORKER: &str = "dev.remuda.worker";
pub(super) const SANDBOX: &str = "dev.remuda.sandbox";
pub(super) const TENANT: &str = "dev.remuda.tenant";
pub(super) const SESSION: &str = "dev.remuda.session";
pub(super) const EPOCH: &str = "dev.remuda.epoch";
pub(super) const IMAGE: &str = "dev.remuda.image";
pub(super) const DIGEST: &str = "dev.remuda.digest";

const NAME_PREFIX: &str = "remuda";

/// Who makes something: what every label set has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Maker {
    pub(super) installation: String,
    /// One backend of one process.
    pub(super) instance: String,
    pub(super) worker: WorkerId,
}

impl Maker {
    pub(super) fn labels(&self, sandbox: SandboxId, holder: Option<&Holder>) -> HashMap<String, String> {
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

/// A container's name: whose it is, for people and for finding a session's containers.
pub(super) fn name(sandbox: SandboxId, holder: Option<&Holder>) -> String {
    match holder {
        None => format!("{NAME_PREFIX}-{sandbox}"),
        Some(Holder { tenant, session, epoch }) => {
            format!("{NAME_PREFIX}-{sandbox}-{tenant}-{session}-{epoch}")
        }
    }
}

/// Reads labels back. `None` is something that is not ours, whatever else it says.
pub(super) fn existing(
    installation: &str,
    handle: &str,
    what: ExistingKind,
    labels: &HashMap<String, String>,
    names: &[String],
) -> Option<Existing> {
    if labels.get(INSTALLATION).is_none_or(|label| label != installation) {
        return None;
    }
    Some(Existing {
        handle: handle.to_owned(),
        what,
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

    fn maker() -> Maker {
        Maker { installation: "here".into(), instance: "one".into(), worker: WorkerId::new() }
    }

    fn read(labels: &HashMap<String, String>, names: &[String]) -> Option<Existing> {
        existing("here", "id", ExistingKind::Container, labels, names)
    }

    #[test]
    fn labels_and_names_are_read_back() {
        let (maker, sandbox) = (maker(), SandboxId::new());
        let holder = Holder { tenant: TenantId::new(), session: SessionId::new(), epoch: 7 };
        let spare = read(&maker.labels(sandbox, None), &[format!("/{}", name(sandbox, None))]).unwrap();
        assert_eq!((spare.worker, spare.sandbox, spare.holder), (maker.worker, sandbox, None));
        let held = read(&maker.labels(sandbox, Some(&holder)), &[]).unwrap();
        assert_eq!(held.holder, Some(holder));
        let given =
            read(&maker.labels(sandbox, None), &[format!("/{}", name(sandbox, Some(&holder)))]).unwrap();
        assert_eq!(given.holder, Some(holder));
    }

    #[test]
    fn what_others_made_is_not_ours() {
        let (maker, sandbox) = (maker(), SandboxId::new());
        let mut labels = maker.labels(sandbox, None);
        assert!(existing("elsewhere", "id", ExistingKind::Container, &labels, &[]).is_none());
        labels.insert(WORKER.into(), "nonsense".into());
        assert!(read(&labels, &[]).is_none());
        assert!(read(&HashMap::new(), &[name(sandbox, None)]).is_none());
    }
}
