//! Going through a directory and what is beneath it.
//!
//! Every directory and file is opened beneath the workspace's descriptor and through no link, by its whole path each
//! time: whatever is renamed or swapped meanwhile, nothing outside is seen, and only one descriptor is open at a time.

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
    bounds::Bounds,
    ignored::{Ignored, Rules},
    list::{DIRECTORY, Name, kind, names},
    root::{READ, Root, not_regular, refused},
};
use crate::traits::{EntryKind, FileKind};

const MAX_DEPTH: usize = 128;

/// Something in a directory.
pub(super) struct Found<'a> {
    pub(super) root: &'a Root,
    /// From the workspace on.
    pub(super) path: &'a Path,
    pub(super) name: &'a OsStr,
    /// From where the walk began, which is 0.
    pub(super) depth: usize,
    pub(super) is_directory: bool,
}

impl Found<'_> {
    /// The file, if it still is one.
    pub(super) fn open(&self) -> Option<File> {
        let file = File::from(self.root.open_exactly(self.path, READ).ok()?);
        file.metadata().ok()?.is_file().then_some(file)
    }

    /// When it was changed last, if it is still there.
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

/// Decides what is looked at.
pub(super) trait Visitor {
    /// Whether to look at a file, or into a directory.
    fn wants(&self, found: &Found<'_>, ignored: Ignored) -> bool;

    /// Looks at a file.
    fn visit(&mut self, found: &Found<'_>) -> ControlFlow<()>;
}

/// Where a search begins.
pub(super) enum Start {
    File(PathBuf),
    Directory(PathBuf),
}

impl Start {
    /// Resolves a path as every file operation does, links included, to what it really is.
    pub(super) fn at(root: &Root, path: &str) -> Result<Self> {
        let failed = |errno| refused(errno, path);
        let open = root.open_beneath(&root.relative(path)?, OFlag::O_PATH).map_err(failed)?;
        let place = || root.whereabouts(&open).map_err(failed);
        match kind(&fstat(&open).map_err(failed)?) {
            EntryKind::File => Ok(Self::File(place()?)),
            EntryKind::Directory => Ok(Self::Directory(place()?)),
            EntryKind::Link | EntryKind::Other => Err(not_regular(FileKind::Other, path)),
        }
    }
}

pub(super) struct Walk<'a, V> {
    root: &'a Root,
    bounds: &'a Bounds,
    rules: Rules,
    visitor: &'a mut V,
}

impl<'a, V: Visitor> Walk<'a, V> {
    pub(super) fn new(root: &'a Root, bounds: &'a Bounds, visitor: &'a mut V) -> Self {
        Self { root, bounds, rules: Rules::default(), visitor }
    }

    /// Visits what is beneath a directory of the workspace, in the order of names.
    pub(super) fn run(&mut self, start: &Path) {
        // What is written above applies below.
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
            if !self.bounds.go_on() {
                return ControlFlow::Break(());
            }
            let path = directory.join(name);
            let Some(kind) = kind.or_else(|| self.kind(&path)) else { continue };
            let is_directory = kind == EntryKind::Directory;
            if !is_directory && kind != EntryKind::File {
                continue;
            }
            let found = Found { root: self.root, path: &path, name, depth, is_directory };
            if !self.visitor.wants(&found, self.rules.judge(&path, is_directory)) {
                continue;
            }
            if !is_directory {
                self.visitor.visit(&found)?;
            } else if depth == MAX_DEPTH {
                self.bounds.reach();
            } else {
                self.descend(&path, depth + 1)?;
            }
        }
        self.rules.leave();
        ControlFlow::Continue(())
    }

    /// The names in a directory, in order; none if it cannot be read (any more).
    fn names(&self, directory: &Path) -> Vec<Name> {
        let read = || names(self.root.open_exactly(directory, DIRECTORY)?, || self.bounds.take_entry());
        match read() {
            Ok((_, mut names)) => {
                names.sort_unstable_by(|one, other| one.0.cmp(&other.0));
                names
            }
            Err(errno) => {
                if errno == Errno::ENAMETOOLONG {
                    self.bounds.reach();
                }
                Vec::new()
            }
        }
    }

    /// What a file system that does not say so in its directories has at a path.
    fn kind(&self, path: &Path) -> Option<EntryKind> {
        let open = self.root.open_exactly(path, OFlag::O_PATH).ok()?;
        fstat(open).ok().as_ref().map(kind)
    }
}
