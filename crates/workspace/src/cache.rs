//! A cache of loaded workspaces that is validated by file stamps on every read.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{definition_files::FileStamps, loader::LoadedWorkspace};
use parking_lot::Mutex;

/// Per process. The least recently used entry is evicted.
const MAX_WORKSPACES: usize = 256;

#[derive(Default)]
pub(crate) struct Cache {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    entries: HashMap<PathBuf, CacheEntry>,
    /// Counts lookups, to find the least recently used entry.
    lookups: u64,
}

#[derive(Clone)]
struct CacheEntry {
    current: Arc<LoadedWorkspace>,
    stamps: Arc<FileStamps>,
    last_used: u64,
}

impl Cache {
    /// The cached workspace if its files are unchanged, otherwise the result of `read`, which runs outside the lock.
    pub(crate) fn current(
        &self,
        root: &Path,
        read: impl FnOnce() -> (LoadedWorkspace, FileStamps),
    ) -> Arc<LoadedWorkspace> {
        let cached = self.lookup(root);
        if let Some(entry) = cached.as_ref().filter(|entry| entry.stamps.unchanged()) {
            return Arc::clone(&entry.current);
        }
        let (current, stamps) = read();
        let current = match cached {
            // Keep the old value if files were touched but say the same.
            Some(entry) if is_equal(&entry.current, &current) => entry.current,
            _ => Arc::new(current),
        };
        self.insert(root, Arc::clone(&current), stamps);
        current
    }

    fn lookup(&self, root: &Path) -> Option<CacheEntry> {
        let mut state = self.state.lock();
        state.lookups += 1;
        let lookup = state.lookups;
        let entry = state.entries.get_mut(root)?;
        entry.last_used = lookup;
        Some(entry.clone())
    }

    fn insert(&self, root: &Path, current: Arc<LoadedWorkspace>, stamps: FileStamps) {
        let mut state = self.state.lock();
        if state.entries.len() >= MAX_WORKSPACES && !state.entries.contains_key(root) {
            let oldest =
                state.entries.iter().min_by_key(|(_, entry)| entry.last_used).map(|(path, _)| path.clone());
            oldest.and_then(|path| state.entries.remove(&path));
        }
        let lookup = state.lookups;
        state
            .entries
            .insert(root.to_owned(), CacheEntry { current, stamps: Arc::new(stamps), last_used: lookup });
    }
}

/// Also compares keys and problems, which are not part of the version.
fn is_equal(a: &LoadedWorkspace, b: &LoadedWorkspace) -> bool {
    a.content.hash == b.content.hash && a.definitions == b.definitions
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use remuda_domain::content::Content;

    use super::*;
    use crate::definitions::Definitions;

    #[test]
    fn unchanged_workspace_is_not_read_again_and_the_oldest_is_evicted() {
        let directory = tempfile::tempdir().unwrap();
        let watched = directory.path().join("watched");
        let (cache, reads) = (Cache::default(), Cell::new(0));
        let load = |root: &str| {
            cache.current(Path::new(root), || {
                reads.set(reads.get() + 1);
                let mut stamps = FileStamps::default();
                stamps.record(&watched);
                let content = Content::new(String::new());
                (LoadedWorkspace { definitions: Definitions::default(), content }, stamps)
            })
        };
        load("a");
        load("a");
        assert_eq!(reads.get(), 1);
        std::fs::write(&watched, "x").unwrap();
        load("a");
        assert_eq!(reads.get(), 2);

        std::fs::remove_file(&watched).unwrap();
        (0..2 * MAX_WORKSPACES).for_each(|index| drop(load(&index.to_string())));
        assert_eq!(cache.state.lock().entries.len(), MAX_WORKSPACES);
        let before = reads.get();
        load(&(2 * MAX_WORKSPACES - 1).to_string());
        assert_eq!(reads.get(), before, "the newest are kept");
        load("0");
        assert_eq!(reads.get(), before + 1, "the oldest are not");
    }
}
