//! The workspace as a whole, for backends whose commands have a copy of it.
//!
//! What comes back was made by a command, so it is taken only as far as it cannot do harm: no path leads through a link, no
//! link leads out, and nothing but files, directories and links is made.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::{File, FileTimes, Permissions},
    io::Write,
    os::{
        fd::OwnedFd,
        unix::{
            ffi::OsStrExt,
            fs::{MetadataExt, PermissionsExt},
        },
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use nix::{
    errno::Errno,
    fcntl::{AtFlags, OFlag, openat, readlinkat, renameat},
    sys::stat::{FileStat, Mode, fstatat, mkdirat},
    unistd::{Gid, Uid, UnlinkatFlags, fchownat, symlinkat, unlinkat},
};
use remuda_domain::error::{Code, Error, Result};
use remuda_supervisor::{
    Entry, EntryKind, UNFINISHED_PREFIX, UNFINISHED_SUFFIX, is_inner_link, is_plain_path,
};

use super::{
    HostFiles, blocking,
    list::{DIRECTORY, names},
    root::{READ, Root, refused},
};
use crate::{guard::Guard, path::shown, traits};

/// Everything that is carried, by path: a directory comes before what is in it.
pub(crate) type Survey = BTreeMap<Vec<u8>, Entry>;

/// As many files as a workspace may have to be copied.
pub(crate) const MAX_ENTRIES: usize = 100_000;

impl HostFiles {
    /// Everything there is, at most `max_bytes` of files.
    pub(crate) async fn survey(&self, max_bytes: u64) -> Result<Survey> {
        self.carried(move |root| root.survey(max_bytes)).await
    }

    /// Opens a file to be carried. It may have changed since it was surveyed; its entry says what it is now.
    pub(crate) async fn open_carried(&self, path: &[u8]) -> Result<(Entry, File)> {
        let path = path.to_vec();
        self.carried(move |root| root.open_carried(&path)).await
    }

    /// Begins a file that is carried in.
    pub(crate) async fn begin_file(&self, path: &[u8]) -> Result<Incoming> {
        let path = path.to_vec();
        self.changed(move |root| root.begin_file(&path)).await
    }

    /// Puts a file that is complete into its place.
    pub(crate) async fn finish_file(&self, incoming: Incoming, entry: Entry) -> Result<Entry> {
        self.changed(move |root| incoming.finish(&entry).and_then(|()| root.look(&entry.path))).await
    }

    /// Makes a directory or a link.
    pub(crate) async fn place(&self, entry: Entry) -> Result<Entry> {
        let place = move |root: &Root| {
            match entry.kind {
                EntryKind::Directory => root.place_directory(&entry)?,
                EntryKind::Link => root.place_link(&entry)?,
                EntryKind::File => return Err(Error::internal("a file comes with its contents")),
            }
            root.look(&entry.path)
        };
        self.changed(place).await
    }

    /// Removes what is gone on the other side, unless something was put there on this one.
    pub(crate) async fn discard(&self, paths: Vec<Vec<u8>>) -> Result<()> {
        self.changed(move |root| paths.iter().try_for_each(|path| root.discard(path))).await
    }

    async fn carried<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Root) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let root = std::sync::Arc::clone(&self.root);
        blocking(move || work(&root)).await
    }

    async fn changed<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Root) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let guard = self.guard.clone();
        self.carried(move |root| {
            guard.as_deref().map_or(Ok(()), Guard::check)?;
            work(root)
        })
        .await
    }
}

impl Root {
    fn survey(&self, max_bytes: u64) -> Result<Survey> {
        let mut survey = Survey::new();
        let mut directories = vec![PathBuf::new()];
        let mut bytes = 0;
        while let Some(directory) = directories.pop() {
            let listed = self.open_exactly(&directory, DIRECTORY).and_then(|open| names(open, || true));
            let (open, names) = match listed {
                Ok(listed) => listed,
                // Removed meanwhile.
                Err(Errno::ENOENT | Errno::ENOTDIR) => continue,
                Err(errno) => return Err(refused(errno, &directory.to_string_lossy())),
            };
            for (name, _) in names.iter().filter(|(name, _)| !is_unfinished(name)) {
                let path = directory.join(name);
                let Some(entry) = entry_at(&open, name, &path) else { continue };
                if entry.kind == EntryKind::Directory {
                    directories.push(path);
                }
                bytes += entry.size;
                survey.insert(entry.path.clone(), entry);
                if survey.len() > MAX_ENTRIES || bytes > max_bytes {
                    let message = format!(
                        "the workspace does not fit into its container: at most {MAX_ENTRIES} files and {max_bytes} bytes are copied"
                    );
                    return Err(Error::new(Code::TooLarge, message).at("workspace"));
                }
            }
        }
        Ok(survey)
    }

    fn look(&self, path: &[u8]) -> Result<Entry> {
        let (directory, name) = self.parent(path)?;
        entry_at(&directory, name, Path::new(OsStr::from_bytes(path)))
            .ok_or_else(|| refused(Errno::ENOENT, &String::from_utf8_lossy(path)))
    }

    fn open_carried(&self, path: &[u8]) -> Result<(Entry, File)> {
        let failed = |errno: Errno| refused(errno, &String::from_utf8_lossy(path));
        let file = File::from(self.open_exactly(Path::new(OsStr::from_bytes(path)), READ).map_err(failed)?);
        let metadata = file.metadata().map_err(|_| failed(Errno::EIO))?;
        if !metadata.is_file() {
            return Err(failed(Errno::EINVAL));
        }
        let entry = Entry {
            path: path.to_vec(),
            kind: EntryKind::File,
            mode: metadata.mode() & 0o777,
            size: metadata.len(),
            modified: nanoseconds(metadata.mtime(), metadata.mtime_nsec()),
            changed: nanoseconds(metadata.ctime(), metadata.ctime_nsec()),
            target: Vec::new(),
        };
        Ok((entry, file))
    }

    fn begin_file(&self, path: &[u8]) -> Result<Incoming> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let failed = |errno: Errno| refused(errno, &String::from_utf8_lossy(path));
        let (directory, name) = self.parent(path)?;
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let unfinished = PathBuf::from(format!(
            "{UNFINISHED_PREFIX}{}-carried-{next}{UNFINISHED_SUFFIX}",
            std::process::id()
        ));
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = openat(&directory, &unfinished, flags, Mode::from_bits_truncate(0o600)).map_err(failed)?;
        let name = PathBuf::from(name);
        let incoming = Incoming { directory, name, unfinished, file: File::from(file), placed: false };
        if let Some((user, group)) = self.heir().map_err(failed)? {
            give(&incoming.directory, &incoming.unfinished, user, group).map_err(failed)?;
        }
        Ok(incoming)
    }

    fn place_directory(&self, entry: &Entry) -> Result<()> {
        let failed = |errno: Errno| refused(errno, &String::from_utf8_lossy(&entry.path));
        let (directory, name) = self.parent(&entry.path)?;
        // Whatever else it says, its owner must be able to fill it.
        let mode = entry.mode & 0o777 | 0o700;
        match mkdirat(&directory, Path::new(name), Mode::from_bits_truncate(mode)) {
            Ok(()) => {
                if let Some((user, group)) = self.heir().map_err(failed)? {
                    give(&directory, Path::new(name), user, group).map_err(failed)?;
                }
            }
            Err(Errno::EEXIST) => {}
            Err(errno) => return Err(failed(errno)),
        }
        let made = File::from(
            self.open_exactly(Path::new(OsStr::from_bytes(&entry.path)), DIRECTORY).map_err(failed)?,
        );
        made.set_permissions(Permissions::from_mode(mode)).map_err(|_| failed(Errno::EPERM))
    }

    fn place_link(&self, entry: &Entry) -> Result<()> {
        let failed = |errno: Errno| refused(errno, &String::from_utf8_lossy(&entry.path));
        if !is_inner_link(&entry.path, &entry.target) {
            return Err(failed(Errno::EXDEV));
        }
        let (directory, name) = self.parent(&entry.path)?;
        match unlinkat(&directory, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(errno) => return Err(failed(errno)),
        }
        symlinkat(OsStr::from_bytes(&entry.target), &directory, name).map_err(failed)?;
        if let Some((user, group)) = self.heir().map_err(failed)? {
            give(&directory, Path::new(name), user, group).map_err(failed)?;
        }
        Ok(())
    }

    fn discard(&self, path: &[u8]) -> Result<()> {
        // Where no directory is, nothing is.
        let Ok((directory, name)) = self.parent(path) else { return Ok(()) };
        let removed = match unlinkat(&directory, name, UnlinkatFlags::NoRemoveDir) {
            Err(Errno::EISDIR | Errno::EPERM) => unlinkat(&directory, name, UnlinkatFlags::RemoveDir),
            removed => removed,
        };
        match removed {
            Ok(()) | Err(Errno::ENOENT | Errno::ENOTEMPTY | Errno::ENOTDIR) => Ok(()),
            Err(errno) => Err(refused(errno, &String::from_utf8_lossy(path))),
        }
    }

    /// The directory of a path, reached through no link, and the last part.
    fn parent<'a>(&self, path: &'a [u8]) -> Result<(OwnedFd, &'a OsStr)> {
        let refuse = |errno: Errno| refused(errno, &String::from_utf8_lossy(path));
        if !is_plain_path(path) {
            return Err(refuse(Errno::EXDEV));
        }
        let path = Path::new(OsStr::from_bytes(path));
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(refuse(Errno::EXDEV));
        };
        let directory = self.open_exactly(parent, OFlag::O_PATH | OFlag::O_DIRECTORY).map_err(refuse)?;
        Ok((directory, name))
    }
}

/// A file that is being carried in: beside its place first. Removed if it never gets there.
#[derive(Debug)]
pub(crate) struct Incoming {
    directory: OwnedFd,
    name: PathBuf,
    unfinished: PathBuf,
    file: File,
    placed: bool,
}

impl Incoming {
    /// Appends to the file. Blocks as long as the disk does.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let failed = |error| Error::new(Code::ToolFailed, "a file cannot be copied back").with_source(error);
        self.file.write_all(bytes).map_err(failed)
    }

    fn finish(mut self, entry: &Entry) -> Result<()> {
        let failed = |error: std::io::Error| {
            let errno = error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
            refused(errno, &String::from_utf8_lossy(&entry.path))
        };
        self.file.set_permissions(Permissions::from_mode(entry.mode & 0o777)).map_err(failed)?;
        self.file.set_times(FileTimes::new().set_modified(entry.modified_at())).map_err(failed)?;
        renameat(&self.directory, &self.unfinished, &self.directory, &self.name)
            .map_err(|errno| failed(errno.into()))?;
        self.placed = true;
        Ok(())
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if !self.placed
            && let Err(errno) = unlinkat(&self.directory, &self.unfinished, UnlinkatFlags::NoRemoveDir)
        {
            tracing::warn!(%errno, file = %shown(&self.name.to_string_lossy()), "cannot remove a temporary file");
        }
    }
}

/// What is at a name, if it is something that is carried.
fn entry_at(directory: impl std::os::fd::AsFd, name: &OsStr, path: &Path) -> Option<Entry> {
    let stat = fstatat(directory.as_fd(), name, AtFlags::AT_SYMLINK_NOFOLLOW).ok()?;
    let kind = match super::list::kind(&stat) {
        traits::EntryKind::File => EntryKind::File,
        traits::EntryKind::Directory => EntryKind::Directory,
        traits::EntryKind::Link => EntryKind::Link,
        traits::EntryKind::Other => return None,
    };
    let path = path.as_os_str().as_bytes().to_vec();
    let target = match kind {
        EntryKind::Link => readlinkat(directory.as_fd(), name).ok()?.into_encoded_bytes(),
        EntryKind::File | EntryKind::Directory => Vec::new(),
    };
    if kind == EntryKind::Link && !is_inner_link(&path, &target) {
        return None;
    }
    Some(entry(path, kind, &stat, target))
}

fn entry(path: Vec<u8>, kind: EntryKind, stat: &FileStat, target: Vec<u8>) -> Entry {
    let size = match kind {
        EntryKind::File => u64::try_from(stat.st_size).unwrap_or_default(),
        EntryKind::Directory | EntryKind::Link => 0,
    };
    Entry {
        path,
        kind,
        mode: stat.st_mode & 0o777,
        size,
        modified: nanoseconds(stat.st_mtime, stat.st_mtime_nsec),
        changed: nanoseconds(stat.st_ctime, stat.st_ctime_nsec),
        target,
    }
}

fn is_unfinished(name: &OsStr) -> bool {
    let name = name.as_bytes();
    name.starts_with(UNFINISHED_PREFIX.as_bytes()) && name.ends_with(UNFINISHED_SUFFIX.as_bytes())
}

fn nanoseconds(seconds: i64, rest: i64) -> u64 {
    u64::try_from(i128::from(seconds) * 1_000_000_000 + i128::from(rest)).unwrap_or(0)
}

fn give(directory: &OwnedFd, name: &Path, user: Uid, group: Gid) -> nix::Result<()> {
    match fchownat(directory, name, Some(user), Some(group), AtFlags::AT_SYMLINK_NOFOLLOW) {
        // Not every file system knows owners.
        Err(Errno::EPERM | Errno::EINVAL) => Ok(()),
        result => result,
    }
}
