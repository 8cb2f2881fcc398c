//! Names of our containers.
//!
//! A container's labels cannot change, but its name can: the name of a spare that was assigned to a session
//! identifies the session.

use remuda_domain::{SandboxId, execution::Holder};

const NAME_PREFIX: &str = "remuda";

/// A container's name. It contains the holder, for people and for finding a session's containers.
pub(super) fn name(sandbox: SandboxId, holder: Option<&Holder>) -> String {
    match holder {
        None => format!("{NAME_PREFIX}-{sandbox}"),
        Some(Holder { tenant, session, epoch }) => {
            format!("{NAME_PREFIX}-{sandbox}-{tenant}-{session}-{epoch}")
        }
    }
}

/// Parses the holder from a name as the engine reports it.
pub(super) fn holder(name: &str) -> Option<Holder> {
    let mut parts = name.trim_start_matches('/').strip_prefix(NAME_PREFIX)?.strip_prefix('-')?.split('-');
    let _sandbox = parts.next()?;
    let (tenant, session, epoch) = (parts.next()?, parts.next()?, parts.next()?);
    Some(Holder { tenant: tenant.parse().ok()?, session: session.parse().ok()?, epoch: epoch.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use remuda_domain::{SessionId, TenantId};

    use super::*;

    #[test]
    fn holder_is_read_back_from_the_name() {
        let sandbox = SandboxId::new();
        let given = Holder { tenant: TenantId::new(), session: SessionId::new(), epoch: 7 };
        assert_eq!(holder(&format!("/{}", name(sandbox, Some(&given)))), Some(given));
        assert_eq!(holder(&format!("/{}", name(sandbox, None))), None);
        assert_eq!(holder("/remuda-postgres-1"), None);
    }
}
