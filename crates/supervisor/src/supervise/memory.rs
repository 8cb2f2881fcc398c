//! Whether the kernel killed for want of memory.

use std::fs;

/// Where a container sees its own cgroup, in version 2 and in version 1. Both have a line `oom_kill <count>`.
const COUNTERS: [&str; 2] = ["/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"];

/// How many processes of this container were killed so far, if the kernel tells.
pub(super) fn kills() -> Option<u64> {
    COUNTERS.iter().find_map(|path| count(&fs::read_to_string(path).ok()?))
}

fn count(counters: &str) -> Option<u64> {
    counters.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_understood() {
        assert_eq!(count("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n"), Some(2));
        assert_eq!(count("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"), Some(5));
        assert_eq!(count("oom_kill_disable 0\nunder_oom 0\n"), None);
    }
}
