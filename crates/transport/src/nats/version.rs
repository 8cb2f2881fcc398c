//! Supported versions of the NATS server.

use remuda_domain::error::{Code, Error, Result};

type Version = (u64, u64, u64);

/// First with `discard_new_per_subject`.
const MINIMUM: Version = (2, 9, 2);
/// First version that decides a rejection on the leader alone; before it, replicas drift apart.
const MINIMUM_REPLICATED: Version = (2, 12, 3);
/// First version that neither leaves undeliverable tokens nor loses streams when it is killed.
const RECOMMENDED: Version = (2, 10, 23);

fn parse(version: &str) -> Option<Version> {
    let numbers = version.trim_start_matches('v').split(['-', '+']).next()?;
    let mut parts = numbers.split('.').map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?))
}

/// Rejects servers that cannot provide the guarantees, and warns about those that need the reconciler to discard dead
/// tokens.
pub(super) fn check(version: &str, replicas: usize) -> Result<()> {
    let Some(parsed) = parse(version) else {
        tracing::warn!(version, "cannot parse the version of the NATS server");
        return Ok(());
    };
    if parsed < MINIMUM {
        let message = format!("NATS {version} is too old: 2.9.2 or later is required");
        return Err(Error::new(Code::Unavailable, message));
    }
    if replicas > 1 && parsed < MINIMUM_REPLICATED {
        let message =
            format!("NATS {version} is too old for {replicas} replicas: 2.12.3 or later is required");
        return Err(Error::new(Code::Unavailable, message));
    }
    if parsed < RECOMMENDED {
        tracing::warn!(
            version,
            "this NATS version may keep dead tokens after a crash; 2.10.23 or later is recommended"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_servers_are_refused() {
        for (version, replicas, fit) in [
            ("2.9.1", 1, false),
            ("2.9.2", 1, true),
            ("2.9.10", 1, true),
            ("2.9.10", 3, false),
            ("2.12.2", 3, false),
            ("v2.12.3-RC.1", 3, true),
            ("2.15.1", 3, true),
            ("unknown", 1, true),
        ] {
            assert_eq!(check(version, replicas).is_ok(), fit, "{version} with {replicas}");
        }
    }
}
