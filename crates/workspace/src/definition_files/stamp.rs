//! Detects changed files by their metadata.

use std::{
    collections::BTreeMap,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// The metadata of a file or directory. The inode shows that a path now leads to another file; the change time cannot be
/// set back by users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// The coarsest resolution of file times: two changes within one tick leave the same times.
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

    /// Whether a later change is sure to change the stamp.
    fn settled(&self, now: SystemTime) -> bool {
        let Ok(seconds) = u64::try_from(self.changed.0) else { return true };
        let Some(changed) = UNIX_EPOCH.checked_add(Duration::from_secs(seconds)) else { return false };
        now.duration_since(changed).is_ok_and(|age| age > TICK)
    }
}

/// The stamps of all paths that a load has opened, taken before they were read.
#[derive(Debug, Default)]
pub(crate) struct FileStamps {
    by_path: BTreeMap<PathBuf, Option<Stamp>>,
    unsettled: bool,
}

impl FileStamps {
    /// Records the stamp of a path. The first stamp wins, so that a change during the load is detected.
    pub(crate) fn record(&mut self, path: &Path) {
        if self.by_path.contains_key(path) {
            return;
        }
        let stamp = Stamp::of(path);
        self.unsettled |= stamp.is_some_and(|stamp| !stamp.settled(SystemTime::now()));
        self.by_path.insert(path.to_owned(), stamp);
    }

    /// Whether all paths are certainly unchanged.
    pub(crate) fn unchanged(&self) -> bool {
        !self.unsettled && self.same_stamps()
    }

    fn same_stamps(&self) -> bool {
        self.by_path.iter().all(|(path, stamp)| Stamp::of(path) == *stamp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_of_recently_changed_files_are_not_trusted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        let mut stamps = FileStamps::default();
        stamps.record(&path);
        assert!(stamps.unchanged(), "a missing file has a stable stamp");
        std::fs::write(&path, "x").unwrap();
        assert!(!stamps.unchanged());

        let mut stamps = FileStamps::default();
        stamps.record(&path);
        assert!(stamps.same_stamps() && !stamps.unchanged(), "the next write could leave the same times");
        let stamp = Stamp::of(&path).unwrap();
        assert!(stamp.settled(SystemTime::now() + 2 * TICK));
    }
}
