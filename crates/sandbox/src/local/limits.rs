//! Converts a policy's limits to rlimits.

use std::os::unix::fs::MetadataExt;

use nix::unistd::{Uid, geteuid};
use remuda_domain::execution::ResourceLimits;
use remuda_supervisor::{Limits, User};

/// Limits for each process. Scans every process of the machine, so call it once per sandbox, not per command.
pub(super) fn of(limits: &ResourceLimits, other_user: Option<User>) -> Limits {
    let user = other_user.map_or_else(geteuid, |user| Uid::from_raw(user.uid));
    // Root is not limited. For other users the kernel counts all threads of the user, far more than the
    // sandbox's.
    let processes = limits.processes.filter(|_| !user.is_root());
    Limits {
        memory_bytes: limits.memory_bytes,
        file_bytes: limits.file_bytes,
        open_files: limits.open_files,
        processes: processes.map(|more| threads_of(user).saturating_add(more)),
    }
}

fn threads_of(user: Uid) -> u64 {
    let Ok(entries) = std::fs::read_dir("/proc") else { return 0 };
    let theirs = entries.flatten().filter(|entry| {
        let is_process = entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit);
        is_process && entry.metadata().is_ok_and(|metadata| metadata.uid() == user.as_raw())
    });
    theirs.filter_map(|entry| threads(&std::fs::read_to_string(entry.path().join("status")).ok()?)).sum()
}

fn threads(status: &str) -> Option<u64> {
    status.lines().find_map(|line| line.strip_prefix("Threads:")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_this_process_are_counted() {
        assert!(threads_of(geteuid()) >= 2, "the test harness has its own thread");
        assert_eq!(threads("Name:\tThreads: 7\nThreads:\t12\n"), Some(12));
    }
}
