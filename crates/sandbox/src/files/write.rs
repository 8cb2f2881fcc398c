//! Writing a file: beside it first, then in its place.

use std::{
    fs::{File, Permissions},
    io::Write,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::PermissionsExt,
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use nix::{
    errno::Errno,
    fcntl::{AtFlags, OFlag, openat, readlinkat, renameat},
    sys::stat::{Mode, SFlag, fstatat, mkdirat},
    unistd::{Gid, Uid, UnlinkatFlags, fchown, linkat, unlinkat},
};
use remuda_domain::error::Result;

use super::root::{Root, failed, not_regular, refused};
use crate::{
    path::shown,
    traits::{FileKind, WriteMode, Written},
};

/// As many links in a row as the kernel follows.
const MAX_LINKS: usize = 40;

/// What is at the place to write to.
enum Place {
    Free,
    File(Old),
    Link { to: PathBuf },
}

/// What a new file takes over from the one it replaces.
#[derive(Clone, Copy)]
struct Old {
    mode: u32,
    owner: (Uid, Gid),
}

impl Root {
    pub(crate) fn write(&self, path: &str, contents: &[u8], mode: WriteMode) -> Result<Written> {
        if path.ends_with('/') {
            return Err(not_regular(FileKind::Directory, path));
        }
        let mut target = self.relative(path)?;
        for _ in 0..MAX_LINKS {
            let Some(name) = target.file_name().map(PathBuf::from) else {
                return Err(not_regular(FileKind::Directory, path));
            };
            let parent = target.parent().unwrap_or(Path::new("")).to_owned();
            let directory = self.make_directory(&parent).map_err(|errno| refused(errno, path))?;
            let old = match look(&directory, &name, path)? {
                // The target is resolved like any other path: one that leads out is refused.
                Place::Link { to } => {
                    if to.is_absolute() {
                        return Err(refused(Errno::EXDEV, path));
                    }
                    target = parent.join(to);
                    continue;
                }
                Place::File(_) if mode == WriteMode::CreateNew => {
                    return Err(refused(Errno::EEXIST, path));
                }
                Place::File(old) => Some(old),
                Place::Free => None,
            };
            self.place(&directory, &name, contents, old, mode).map_err(|error| failed(error, path))?;
            return Ok(Written { created: old.is_none() });
        }
        Err(refused(Errno::ELOOP, path))
    }

    /// Opens a directory, making it and its parents where they are missing.
    fn make_directory(&self, path: &Path) -> nix::Result<OwnedFd> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
        let mut directory =
            match self.open_beneath(if path.as_os_str().is_empty() { Path::new(".") } else { path }, flags) {
                Err(Errno::ENOENT) => self.open_beneath(Path::new("."), flags)?,
                result => return result,
            };
        let mut prefix = PathBuf::new();
        for component in path.components() {
            prefix.push(component);
            directory = match self.open_beneath(&prefix, flags) {
                Err(Errno::ENOENT) => {
                    match mkdirat(
                        &directory,
                        Path::new(component.as_os_str()),
                        Mode::from_bits_truncate(0o777),
                    ) {
                        Ok(()) => {
                            self.bequeath_directory(&prefix)?;
                            self.open_beneath(&prefix, flags)?
                        }
                        Err(Errno::EEXIST) => self.open_beneath(&prefix, flags)?,
                        Err(errno) => return Err(errno),
                    }
                }
                result => result?,
            };
        }
        Ok(directory)
    }

    /// Gives a directory that was just made to the owner of the workspace. Opened for reading, because a descriptor that
    /// only names a place (`O_PATH`) cannot change what is there.
    fn bequeath_directory(&self, path: &Path) -> nix::Result<()> {
        match self.heir()? {
            Some(heir) => give(self.open_beneath(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?, heir),
            None => Ok(()),
        }
    }

    /// Puts a new file at `name`. A hard link to the old one elsewhere keeps the old contents.
    fn place(
        &self,
        directory: &OwnedFd,
        name: &Path,
        contents: &[u8],
        old: Option<Old>,
        mode: WriteMode,
    ) -> std::io::Result<()> {
        let (mut file, temporary) = Temporary::create(directory.as_fd())?;
        if let Some(heir) = self.heir()? {
            give(&file, old.map_or(heir, |old| old.owner))?;
        }
        if let Some(old) = old {
            file.set_permissions(Permissions::from_mode(old.mode))?;
        }
        file.write_all(contents)?;
        match mode {
            WriteMode::Overwrite => temporary.rename(name)?,
            // Unlike a rename, a link refuses to replace.
            WriteMode::CreateNew => linkat(directory, &temporary.name, directory, name, AtFlags::empty())?,
        }
        Ok(())
    }
}

/// Changes the owner, where the file system knows owners.
fn give(file: impl AsFd, (user, group): (Uid, Gid)) -> nix::Result<()> {
    match fchown(file, Some(user), Some(group)) {
        Err(Errno::EPERM | Errno::EINVAL) => Ok(()),
        result => result,
    }
}

fn look(directory: &OwnedFd, name: &Path, path: &str) -> Result<Place> {
    let stat = match fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Err(Errno::ENOENT) => return Ok(Place::Free),
        result => result.map_err(|errno| refused(errno, path))?,
    };
    match SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) {
        // Not the set-id bits: new contents do not inherit the trust in old ones.
        SFlag::S_IFREG => Ok(Place::File(Old {
            mode: stat.st_mode & 0o777,
            owner: (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid)),
        })),
        SFlag::S_IFLNK => {
            let to = readlinkat(directory, name).map_err(|errno| refused(errno, path))?;
            Ok(Place::Link { to: to.into() })
        }
        SFlag::S_IFDIR => Err(not_regular(FileKind::Directory, path)),
        _ => Err(not_regular(FileKind::Other, path)),
    }
}

/// A file of ours that is removed unless it found its place.
struct Temporary<'a> {
    directory: BorrowedFd<'a>,
    name: PathBuf,
    placed: bool,
}

impl<'a> Temporary<'a> {
    fn create(directory: BorrowedFd<'a>) -> nix::Result<(File, Self)> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        loop {
            let next = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = PathBuf::from(format!(".remuda-{}-{next}.tmp", std::process::id()));
            match openat(directory, &name, flags, Mode::from_bits_truncate(0o666)) {
                // Left by a process that had our id, or made by one elsewhere that has.
                Err(Errno::EEXIST) => {}
                result => return Ok((File::from(result?), Self { directory, name, placed: false })),
            }
        }
    }

    fn rename(mut self, name: &Path) -> nix::Result<()> {
        renameat(self.directory, &self.name, self.directory, name)?;
        self.placed = true;
        Ok(())
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if self.placed {
            return;
        }
        if let Err(errno) = unlinkat(self.directory, &self.name, UnlinkatFlags::NoRemoveDir) {
            tracing::warn!(%errno, file = %shown(&self.name.to_string_lossy()), "cannot remove a temporary file");
        }
    }
}
