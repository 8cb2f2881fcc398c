//! Reads the OOM kill counter of the container's cgroup.

use std::fs;

/// Files of the container's own cgroup, for cgroup v2 and v1. Both contain a line `oom_kill <count>`.
const COUNTERS: [&str; 2] = ["/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"];

/// Number of processes of this container that the OOM killer has killed, if the kernel reports it.
pub(super) fn oom_kills() -> Option<u64> {
    COUNTERS.iter().find_map(|path| count(&fs::read_to_string(path).ok()?))
}

fn count(counters: &str) -> Option<u64> {
    counters.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_both_cgroup_versions_are_parsed() {
        assert_eq!(count("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n"), Some(2));
        assert_eq!(count("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"), Some(5));
        assert_eq!(count("oom_kill_disable 0\nunder_oom 0\n"), None);
    }
}
