//! Recursive directory walk for searches.
//!
//! Every directory and file is opened beneath the workspace's descriptor, without following links, by its
//! whole path each time. Concurrent renames cannot expose anything outside, and only one descriptor is open
//! at a time.

use std::{
    ffi::OsStr,
    fs::File,
    ops::ControlFlow,
    path::{Path, PathBuf},
    time::SystemTime,
};

use nix::{errno::Errno, fcntl::OFlag, sys::stat::fstat};
use remuda_domain::error::Result;

use super::{
    ignore_rules::{IgnoreRules, IgnoreVerdict},
    list::{DIRECTORY, Name, kind, read_names},
    root::{READ, Root, not_regular, refused},
    search_limits::SearchLimits,
};
use crate::traits::{EntryKind, FileKind};

const MAX_DEPTH: usize = 128;

/// A file or directory found by the walk.
pub(super) struct WalkEntry<'a> {
    pub(super) root: &'a Root,
    /// Relative to the workspace.
    pub(super) path: &'a Path,
    pub(super) name: &'a OsStr,
    /// Depth below the start of the walk, from 0.
    pub(super) depth: usize,
    pub(super) is_directory: bool,
}

impl WalkEntry<'_> {
    /// Opens the file, if it is still a regular file.
    pub(super) fn open(&self) -> Option<File> {
        let file = File::from(self.root.open_exactly(self.path, READ).ok()?);
        file.metadata().ok()?.is_file().then_some(file)
    }

    /// Modification time, if it still exists.
    pub(super) fn modified(&self) -> Option<SystemTime> {
        File::from(self.root.open_exactly(self.path, OFlag::O_PATH).ok()?).metadata().ok()?.modified().ok()
    }

    pub(super) fn is_hidden(&self) -> bool {
        self.name.as_encoded_bytes().starts_with(b".")
    }

    /// The path as text. Bytes that are not UTF-8 are shown with U+FFFD.
    pub(super) fn text(&self) -> String {
        self.path.to_string_lossy().into_owned()
    }
}

/// Selects and processes entries of a walk.
pub(super) trait Visitor {
    /// Whether to visit a file or enter a directory.
    fn includes(&self, found: &WalkEntry<'_>, ignored: IgnoreVerdict) -> bool;

    /// Processes a file.
    fn visit(&mut self, found: &WalkEntry<'_>) -> ControlFlow<()>;
}

/// Start of a search.
pub(super) enum SearchStart {
    File(PathBuf),
    Directory(PathBuf),
}

impl SearchStart {
    /// Resolves a path, including links, to its real path in the workspace.
    pub(super) fn at(root: &Root, path: &str) -> Result<Self> {
        let failed = |errno| refused(errno, path);
        let open = root.open_beneath(&root.relative(path)?, OFlag::O_PATH).map_err(failed)?;
        let real_path = || root.real_path(&open).map_err(failed);
        match kind(&fstat(&open).map_err(failed)?) {
            EntryKind::File => Ok(Self::File(real_path()?)),
            EntryKind::Directory => Ok(Self::Directory(real_path()?)),
            EntryKind::Link | EntryKind::Other => Err(not_regular(FileKind::Other, path)),
        }
    }
}

pub(super) struct DirectoryWalk<'a, V> {
    root: &'a Root,
    limits: &'a SearchLimits,
    rules: IgnoreRules,
    visitor: &'a mut V,
}

impl<'a, V: Visitor> DirectoryWalk<'a, V> {
    pub(super) fn new(root: &'a Root, limits: &'a SearchLimits, visitor: &'a mut V) -> Self {
        Self { root, limits, rules: IgnoreRules::default(), visitor }
    }

    /// Visits everything beneath a directory of the workspace, ordered by name.
    pub(super) fn run(&mut self, start: &Path) {
        // Ignore rules of parent directories apply, too.
        let mut above: Vec<&Path> = start.ancestors().skip(1).collect();
        above.reverse();
        for directory in above {
            self.rules.enter(self.root, directory);
        }
        let _ended_early = self.descend(start, 0);
    }

    fn descend(&mut self, directory: &Path, depth: usize) -> ControlFlow<()> {
        let names = self.names(directory);
        if names.is_empty() {
            return ControlFlow::Continue(());
        }
        self.rules.enter(self.root, directory);
        for (name, kind) in &names {
            if !self.limits.may_continue() {
                return ControlFlow::Break(());
            }
            let path = directory.join(name);
            let Some(kind) = kind.or_else(|| self.kind(&path)) else { continue };
            let is_directory = kind == EntryKind::Directory;
            if !is_directory && kind != EntryKind::File {
                continue;
            }
            let found = WalkEntry { root: self.root, path: &path, name, depth, is_directory };
            if !self.visitor.includes(&found, self.rules.verdict(&path, is_directory)) {
                continue;
            }
            if !is_directory {
                self.visitor.visit(&found)?;
            } else if depth == MAX_DEPTH {
                self.limits.mark_reached();
            } else {
                self.descend(&path, depth + 1)?;
            }
        }
        self.rules.leave();
        ControlFlow::Continue(())
    }

    /// The names in a directory, sorted; empty if it cannot be read (any more).
    fn names(&self, directory: &Path) -> Vec<Name> {
        let read = || read_names(self.root.open_exactly(directory, DIRECTORY)?, || self.limits.take_entry());
        match read() {
            Ok((_, mut names)) => {
                names.sort_unstable_by(|one, other| one.0.cmp(&other.0));
                names
            }
            Err(errno) => {
                if errno == Errno::ENAMETOOLONG {
                    self.limits.mark_reached();
                }
                Vec::new()
            }
        }
    }

    /// Reads the kind of an entry, for file systems that do not report it in the directory.
    fn kind(&self, path: &Path) -> Option<EntryKind> {
        let open = self.root.open_exactly(path, OFlag::O_PATH).ok()?;
        fstat(open).ok().as_ref().map(kind)
    }
}
