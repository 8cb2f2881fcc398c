//! Lists directories and removes entries.

use std::{
    ffi::{OsStr, OsString},
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::Path,
};

use nix::{
    dir::{Dir, Type},
    errno::Errno,
    fcntl::{AtFlags, OFlag},
    sys::stat::{FileStat, SFlag, fstatat},
    unistd::{UnlinkatFlags, unlinkat},
};
use remuda_domain::error::{Error, Result};

use super::root::{Root, refused};
use crate::{
    path::display_safe,
    traits::{Entry, EntryKind, FileKind, Listing},
};

/// The most entries of one listing, whatever limit was requested.
const MAX_LISTED: usize = 10_000;
/// The most names that are read of one directory.
const MAX_NAMES: usize = 200_000;

impl Root {
    pub(crate) fn list(&self, path: &str, limit: usize) -> Result<Listing> {
        let directory = self.open_beneath(&self.relative(path)?, DIRECTORY).map_err(|errno| {
            let is_file = || self.stat(path).is_ok_and(|stat| stat.kind != FileKind::Directory);
            if errno == Errno::ENOTDIR && is_file() {
                return Error::invalid("path", format!("{} is not a directory", display_safe(path)));
            }
            refused(errno, path)
        })?;
        let failed = |errno| refused(errno, path);
        let mut left = MAX_NAMES;
        let (directory, mut names) = read_names(directory, || {
            left = left.saturating_sub(1);
            left > 0
        })
        .map_err(failed)?;
        names.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        let limit = limit.min(MAX_LISTED);
        let truncated = left == 0 || names.len() > limit;
        names.truncate(limit);
        let entries = names.into_iter().filter_map(|(name, _)| entry(&directory, &name).transpose());
        Ok(Listing { entries: entries.collect::<nix::Result<_>>().map_err(failed)?, truncated })
    }

    pub(crate) fn remove(&self, path: &str) -> Result<()> {
        let target = self.relative(path)?;
        // The workspace itself, or a path that ends with `..`.
        let Some(name) = target.file_name() else {
            return Err(Error::invalid(
                "path",
                format!("{} does not name an entry of a directory", display_safe(path)),
            ));
        };
        let parent = match target.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let remove = || {
            let directory = self.open_beneath(parent, OFlag::O_PATH | OFlag::O_DIRECTORY)?;
            let stat = fstatat(&directory, name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
            let how = match kind(&stat) {
                EntryKind::Directory => UnlinkatFlags::RemoveDir,
                // `link/` means the target of the link.
                _ if path.ends_with('/') => return Err(Errno::ENOTDIR),
                _ => UnlinkatFlags::NoRemoveDir,
            };
            unlinkat(&directory, name, how)
        };
        remove().map_err(|errno| refused(errno, path))
    }
}

/// Flags for reading a directory.
pub(super) const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NONBLOCK);

/// A name in a directory, and its kind if the file system reports it in the listing.
pub(super) type Name = (OsString, Option<EntryKind>);

/// Reads the names of a directory, unordered, as long as `more` returns true.
pub(super) fn read_names(
    directory: OwnedFd,
    mut more: impl FnMut() -> bool,
) -> nix::Result<(Dir, Vec<Name>)> {
    let mut directory = Dir::from_fd(directory)?;
    let mut names = Vec::new();
    for entry in directory.iter() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        if !more() {
            break;
        }
        let kind = entry.file_type().map(|kind| match kind {
            Type::File => EntryKind::File,
            Type::Directory => EntryKind::Directory,
            Type::Symlink => EntryKind::Link,
            Type::Fifo | Type::CharacterDevice | Type::BlockDevice | Type::Socket => EntryKind::Other,
        });
        names.push((OsStr::from_bytes(name).to_owned(), kind));
    }
    Ok((directory, names))
}

/// Reads the entry of a name, if it still exists.
fn entry(directory: &Dir, name: &OsStr) -> nix::Result<Option<Entry>> {
    let stat = match fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Err(Errno::ENOENT) => return Ok(None),
        result => result?,
    };
    let size = u64::try_from(stat.st_size).unwrap_or_default();
    Ok(Some(Entry { name: name.to_string_lossy().into_owned(), kind: kind(&stat), size }))
}

pub(super) fn kind(stat: &FileStat) -> EntryKind {
    match SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) {
        SFlag::S_IFREG => EntryKind::File,
        SFlag::S_IFDIR => EntryKind::Directory,
        SFlag::S_IFLNK => EntryKind::Link,
        _ => EntryKind::Other,
    }
}
