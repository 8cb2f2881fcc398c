//! Whether something changed, without reading it.

use std::{
    collections::BTreeMap,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// What the file system says of a file or directory. The inode tells whether a path leads to something else, the change
/// time cannot be set back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// Clocks of file systems tick slowly: a change within the same tick as the one before leaves the same times.
const TICK: Duration = Duration::from_secs(2);

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(path).ok()?;
        Some(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }

    /// Whether a change from now on would show.
    fn settled(&self, now: SystemTime) -> bool {
        let Ok(seconds) = u64::try_from(self.changed.0) else { return true };
        let Some(changed) = UNIX_EPOCH.checked_add(Duration::from_secs(seconds)) else { return false };
        now.duration_since(changed).is_ok_and(|age| age > TICK)
    }
}

/// Everything that was looked at, and how it was just before.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    stamps: BTreeMap<PathBuf, Option<Stamp>>,
    unsettled: bool,
}

impl Seen {
    /// Remembers how something is. The first look counts: what changed later must be seen as changed.
    pub(crate) fn look(&mut self, path: &Path) {
        if self.stamps.contains_key(path) {
            return;
        }
        let stamp = Stamp::of(path);
        self.unsettled |= stamp.is_some_and(|stamp| !stamp.settled(SystemTime::now()));
        self.stamps.insert(path.to_owned(), stamp);
    }

    /// Whether all of it is surely as it was.
    pub(crate) fn unchanged(&self) -> bool {
        !self.unsettled && self.same_stamps()
    }

    fn same_stamps(&self) -> bool {
        self.stamps.iter().all(|(path, stamp)| Stamp::of(path) == *stamp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_changes_are_not_trusted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        let mut seen = Seen::default();
        seen.look(&path);
        assert!(seen.unchanged(), "what is missing stays missing");
        std::fs::write(&path, "x").unwrap();
        assert!(!seen.unchanged());

        let mut seen = Seen::default();
        seen.look(&path);
        assert!(seen.same_stamps() && !seen.unchanged(), "the next write could leave the same times");
        let stamp = Stamp::of(&path).unwrap();
        assert!(stamp.settled(SystemTime::now() + 2 * TICK));
    }
}
