//! Transfer of workspace entries between the host and a container with its own copy.
//!
//! Entries from a container were made by commands, so they are accepted only as far as they are harmless: no
//! path leads through a link, no link leaves the workspace, and only files, directories and links are
//! created.

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
use remuda_supervisor::{Entry, EntryKind, TEMP_FILE_PREFIX, TEMP_FILE_SUFFIX, is_inner_link, is_plain_path};

use super::{
    HostFiles, blocking,
    list::{DIRECTORY, read_names},
    root::{READ, Root, refused},
};
use crate::{guard::Guard, path::display_safe, traits};

/// All entries of a workspace by path; a directory comes before its contents.
pub(crate) type WorkspaceEntries = BTreeMap<Vec<u8>, Entry>;

/// The most entries of a workspace that is copied.
pub(crate) const MAX_ENTRIES: usize = 100_000;

impl HostFiles {
    /// Lists all entries. Fails if the files exceed `max_bytes`.
    pub(crate) async fn list_entries(&self, max_bytes: u64) -> Result<WorkspaceEntries> {
        self.run_blocking(move |root| root.list_entries(max_bytes)).await
    }

    /// Opens a file for the transfer to the container. It may have changed since it was listed; the returned
    /// entry is current.
    pub(crate) async fn open_for_transfer(&self, path: &[u8]) -> Result<(Entry, File)> {
        let path = path.to_vec();
        self.run_blocking(move |root| root.open_for_transfer(&path)).await
    }

    /// Starts writing a file received from the container.
    pub(crate) async fn begin_file(&self, path: &[u8]) -> Result<IncomingFile> {
        let path = path.to_vec();
        self.run_guarded(move |root| root.begin_file(&path)).await
    }

    /// Moves a completely received file to its path.
    pub(crate) async fn finish_file(&self, incoming: IncomingFile, entry: Entry) -> Result<Entry> {
        self.run_guarded(move |root| incoming.finish(&entry).and_then(|()| root.read_entry(&entry.path)))
            .await
    }

    /// Creates a directory or a link.
    pub(crate) async fn create_entry(&self, entry: Entry) -> Result<Entry> {
        let create = move |root: &Root| {
            match entry.kind {
                EntryKind::Directory => root.create_directory(&entry)?,
                EntryKind::Link => root.create_link(&entry)?,
                EntryKind::File => {
                    return Err(Error::internal(
                        "expected a directory or a link: files are received with their contents",
                    ));
                }
            }
            root.read_entry(&entry.path)
        };
        self.run_guarded(create).await
    }

    /// Removes entries that were removed in the container, except directories that have new contents here.
    pub(crate) async fn remove_entries(&self, paths: Vec<Vec<u8>>) -> Result<()> {
        self.run_guarded(move |root| paths.iter().try_for_each(|path| root.remove_entry(path))).await
    }

    async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Root) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let root = std::sync::Arc::clone(&self.root);
        blocking(move || work(&root)).await
    }

    async fn run_guarded<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Root) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let guard = self.guard.clone();
        self.run_blocking(move |root| {
            guard.as_deref().map_or(Ok(()), Guard::check)?;
            work(root)
        })
        .await
    }
}

impl Root {
    fn list_entries(&self, max_bytes: u64) -> Result<WorkspaceEntries> {
        let mut list_entries = WorkspaceEntries::new();
        let mut directories = vec![PathBuf::new()];
        let mut bytes = 0;
        while let Some(directory) = directories.pop() {
            let listed = self.open_exactly(&directory, DIRECTORY).and_then(|open| read_names(open, || true));
            let (open, names) = match listed {
                Ok(listed) => listed,
                // Removed in the meantime.
                Err(Errno::ENOENT | Errno::ENOTDIR) => continue,
                Err(errno) => return Err(refused(errno, &directory.to_string_lossy())),
            };
            for (name, _) in names.iter().filter(|(name, _)| !is_temp_file(name)) {
                let path = directory.join(name);
                let Some(entry) = entry_at(&open, name, &path) else { continue };
                if entry.kind == EntryKind::Directory {
                    directories.push(path);
                }
                bytes += entry.size;
                list_entries.insert(entry.path.clone(), entry);
                if list_entries.len() > MAX_ENTRIES || bytes > max_bytes {
                    let message = format!(
                        "the workspace does not fit into its container: at most {MAX_ENTRIES} files and {max_bytes} bytes are copied"
                    );
                    return Err(Error::new(Code::TooLarge, message).at("workspace"));
                }
            }
        }
        Ok(list_entries)
    }

    fn read_entry(&self, path: &[u8]) -> Result<Entry> {
        let (directory, name) = self.parent(path)?;
        entry_at(&directory, name, Path::new(OsStr::from_bytes(path)))
            .ok_or_else(|| refused(Errno::ENOENT, &String::from_utf8_lossy(path)))
    }

    fn open_for_transfer(&self, path: &[u8]) -> Result<(Entry, File)> {
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

    fn begin_file(&self, path: &[u8]) -> Result<IncomingFile> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let failed = |errno: Errno| refused(errno, &String::from_utf8_lossy(path));
        let (directory, name) = self.parent(path)?;
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let temporary = PathBuf::from(format!(
            "{TEMP_FILE_PREFIX}{}-carried-{next}{TEMP_FILE_SUFFIX}",
            std::process::id()
        ));
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = openat(&directory, &temporary, flags, Mode::from_bits_truncate(0o600)).map_err(failed)?;
        let name = PathBuf::from(name);
        let incoming = IncomingFile { directory, name, temporary, file: File::from(file), renamed: false };
        if let Some((user, group)) = self.workspace_owner().map_err(failed)? {
            change_owner(&incoming.directory, &incoming.temporary, user, group).map_err(failed)?;
        }
        Ok(incoming)
    }

    fn create_directory(&self, entry: &Entry) -> Result<()> {
        let failed = |errno: Errno| refused(errno, &String::from_utf8_lossy(&entry.path));
        let (directory, name) = self.parent(&entry.path)?;
        // The owner must always be able to create files in it.
        let mode = entry.mode & 0o777 | 0o700;
        match mkdirat(&directory, Path::new(name), Mode::from_bits_truncate(mode)) {
            Ok(()) => {
                if let Some((user, group)) = self.workspace_owner().map_err(failed)? {
                    change_owner(&directory, Path::new(name), user, group).map_err(failed)?;
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

    fn create_link(&self, entry: &Entry) -> Result<()> {
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
        if let Some((user, group)) = self.workspace_owner().map_err(failed)? {
            change_owner(&directory, Path::new(name), user, group).map_err(failed)?;
        }
        Ok(())
    }

    fn remove_entry(&self, path: &[u8]) -> Result<()> {
        // Without a parent directory there is nothing to remove.
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

    /// Opens the parent directory of a path without following links. Returns it with the last component.
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

/// A file being received, stored under a temporary name in the target directory. Removed unless it was
/// finished.
#[derive(Debug)]
pub(crate) struct IncomingFile {
    directory: OwnedFd,
    name: PathBuf,
    temporary: PathBuf,
    file: File,
    renamed: bool,
}

impl IncomingFile {
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
        renameat(&self.directory, &self.temporary, &self.directory, &self.name)
            .map_err(|errno| failed(errno.into()))?;
        self.renamed = true;
        Ok(())
    }
}

impl Drop for IncomingFile {
    fn drop(&mut self) {
        if !self.renamed
            && let Err(errno) = unlinkat(&self.directory, &self.temporary, UnlinkatFlags::NoRemoveDir)
        {
            tracing::warn!(%errno, file = %display_safe(&self.name.to_string_lossy()), "cannot remove a temporary file");
        }
    }
}

/// Reads the entry of a name, if it is of a kind that is copied.
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

fn is_temp_file(name: &OsStr) -> bool {
    let name = name.as_bytes();
    name.starts_with(TEMP_FILE_PREFIX.as_bytes()) && name.ends_with(TEMP_FILE_SUFFIX.as_bytes())
}

fn nanoseconds(seconds: i64, rest: i64) -> u64 {
    u64::try_from(i128::from(seconds) * 1_000_000_000 + i128::from(rest)).unwrap_or(0)
}

fn change_owner(directory: &OwnedFd, name: &Path, user: Uid, group: Gid) -> nix::Result<()> {
    match fchownat(directory, name, Some(user), Some(group), AtFlags::AT_SYMLINK_NOFOLLOW) {
        // Not every file system has owners.
        Err(Errno::EPERM | Errno::EINVAL) => Ok(()),
        result => result,
    }
}
