//! Workspaces that were read, kept until they change.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use crate::{files::Seen, loader::Current};

/// Of one process. The one that was not asked for the longest makes room.
const MAX_WORKSPACES: usize = 256;

#[derive(Default)]
pub(crate) struct Cache {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    entries: HashMap<PathBuf, Entry>,
    /// Counts questions, to know the oldest.
    asked: u64,
}

#[derive(Clone)]
struct Entry {
    current: Arc<Current>,
    seen: Arc<Seen>,
    asked: u64,
}

impl Cache {
    /// What is kept, if it is still true; otherwise what `read` gives. Reading happens outside the lock.
    pub(crate) fn current(&self, root: &Path, read: impl FnOnce() -> (Current, Seen)) -> Arc<Current> {
        let kept = self.find(root);
        if let Some(entry) = kept.as_ref().filter(|entry| entry.seen.unchanged()) {
            return Arc::clone(&entry.current);
        }
        let (current, seen) = read();
        let current = match kept {
            // Files may be touched without saying anything new.
            Some(entry) if same(&entry.current, &current) => entry.current,
            _ => Arc::new(current),
        };
        self.keep(root, Arc::clone(&current), seen);
        current
    }

    fn find(&self, root: &Path) -> Option<Entry> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.asked += 1;
        let asked = state.asked;
        let entry = state.entries.get_mut(root)?;
        entry.asked = asked;
        Some(entry.clone())
    }

    fn keep(&self, root: &Path, current: Arc<Current>, seen: Seen) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.entries.len() >= MAX_WORKSPACES && !state.entries.contains_key(root) {
            let oldest =
                state.entries.iter().min_by_key(|(_, entry)| entry.asked).map(|(path, _)| path.clone());
            oldest.and_then(|path| state.entries.remove(&path));
        }
        let asked = state.asked;
        state.entries.insert(root.to_owned(), Entry { current, seen: Arc::new(seen), asked });
    }
}

/// Also compares keys and problems, which are no part of the version.
fn same(a: &Current, b: &Current) -> bool {
    a.content.hash == b.content.hash && a.definitions == b.definitions
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use remuda_domain::content::Content;

    use super::*;
    use crate::definitions::Definitions;

    #[test]
    fn reads_only_what_changed_and_forgets_the_oldest() {
        let directory = tempfile::tempdir().unwrap();
        let watched = directory.path().join("watched");
        let (cache, reads) = (Cache::default(), Cell::new(0));
        let ask = |root: &str| {
            cache.current(Path::new(root), || {
                reads.set(reads.get() + 1);
                let mut seen = Seen::default();
                seen.look(&watched);
                let content = Content::new(String::new());
                (Current { definitions: Definitions::default(), content }, seen)
            })
        };
        ask("a");
        ask("a");
        assert_eq!(reads.get(), 1);
        std::fs::write(&watched, "x").unwrap();
        ask("a");
        assert_eq!(reads.get(), 2);

        std::fs::remove_file(&watched).unwrap();
        (0..2 * MAX_WORKSPACES).for_each(|index| drop(ask(&index.to_string())));
        assert_eq!(cache.state.lock().unwrap().entries.len(), MAX_WORKSPACES);
        let before = reads.get();
        ask(&(2 * MAX_WORKSPACES - 1).to_string());
        assert_eq!(reads.get(), before, "the newest are kept");
        ask("0");
        assert_eq!(reads.get(), before + 1, "the oldest are not");
    }
}
