//! Keeps the newest of many files.

use std::{cmp::Reverse, time::SystemTime};

/// Maximum total length of the kept paths.
const MAX_BYTES: usize = 16 * 1024 * 1024;

/// Collects files and keeps the newest ones.
#[derive(Debug)]
pub(super) struct NewestFiles {
    files: Vec<(Reverse<SystemTime>, String)>,
    bytes: usize,
    keep: usize,
    /// Number of all files, including those not kept.
    pub(super) total: usize,
}

impl NewestFiles {
    pub(super) fn new(keep: usize) -> Self {
        Self { files: Vec::new(), bytes: 0, keep, total: 0 }
    }

    /// Adds a file. False if the byte limit is reached.
    pub(super) fn add(&mut self, modified: SystemTime, path: String) -> bool {
        // Sorting occasionally is fast enough and simple.
        if self.files.len() > self.keep.saturating_mul(2).max(1024) {
            self.prune();
        }
        if self.bytes + path.len() > MAX_BYTES {
            self.prune();
        }
        if self.bytes + path.len() > MAX_BYTES {
            return false;
        }
        self.total += 1;
        self.bytes += path.len();
        self.files.push((Reverse(modified), path));
        true
    }

    fn prune(&mut self) {
        self.files.sort_unstable();
        self.files.truncate(self.keep);
        self.bytes = self.files.iter().map(|(_, path)| path.len()).sum();
    }

    /// Newest first; ties ordered by path.
    pub(super) fn into_paths(mut self) -> impl Iterator<Item = String> {
        self.prune();
        self.files.into_iter().map(|(_, path)| path)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn keeps_the_newest_and_counts_all() {
        let mut newest = NewestFiles::new(3);
        for number in 0..5000 {
            assert!(newest.add(at(number % 1000), format!("{number:04}")));
        }
        assert_eq!(newest.total, 5000);
        assert_eq!(newest.into_paths().collect::<Vec<_>>(), ["0999", "1999", "2999"]);
    }

    #[test]
    fn add_fails_at_the_byte_limit() {
        let mut newest = NewestFiles::new(usize::MAX);
        let path = "x".repeat(4096);
        let added = (0..10_000).take_while(|_| newest.add(at(0), path.clone())).count();
        assert_eq!(added, MAX_BYTES / 4096);
    }
}
