//! Atomic file writes: to a temporary file, then renamed.

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
    path::display_safe,
    traits::{FileKind, WriteMode, WriteOutcome},
};

/// The most links that are followed, as in the kernel.
const MAX_LINKS: usize = 40;

/// What exists at the target path.
enum TargetState {
    Missing,
    File(ReplacedFile),
    Link { to: PathBuf },
}

/// Attributes that a new file takes over from the one it replaces.
#[derive(Clone, Copy)]
struct ReplacedFile {
    mode: u32,
    owner: (Uid, Gid),
}

impl Root {
    pub(crate) fn write(&self, path: &str, contents: &[u8], mode: WriteMode) -> Result<WriteOutcome> {
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
            let old = match inspect_target(&directory, &name, path)? {
                // The link's target is resolved like any other path; one that leaves the workspace is
                // rejected.
                TargetState::Link { to } => {
                    if to.is_absolute() {
                        return Err(refused(Errno::EXDEV, path));
                    }
                    target = parent.join(to);
                    continue;
                }
                TargetState::File(_) if mode == WriteMode::CreateNew => {
                    return Err(refused(Errno::EEXIST, path));
                }
                TargetState::File(old) => Some(old),
                TargetState::Missing => None,
            };
            self.write_new_file(&directory, &name, contents, old, mode)
                .map_err(|error| failed(error, path))?;
            return Ok(WriteOutcome { created: old.is_none() });
        }
        Err(refused(Errno::ELOOP, path))
    }

    /// Opens a directory. Creates it and its parents when missing.
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
                            self.chown_to_workspace_owner(&prefix)?;
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

    /// Changes the owner of a new directory to the workspace's owner. Opened for reading, because an `O_PATH`
    /// descriptor does not allow it.
    fn chown_to_workspace_owner(&self, path: &Path) -> nix::Result<()> {
        match self.workspace_owner()? {
            Some(workspace_owner) => {
                change_owner(self.open_beneath(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?, workspace_owner)
            }
            None => Ok(()),
        }
    }

    /// Creates a new file at `name`. A hard link to the old one keeps the old contents.
    fn write_new_file(
        &self,
        directory: &OwnedFd,
        name: &Path,
        contents: &[u8],
        old: Option<ReplacedFile>,
        mode: WriteMode,
    ) -> std::io::Result<()> {
        let (mut file, temporary) = TemporaryFile::create(directory.as_fd())?;
        if let Some(workspace_owner) = self.workspace_owner()? {
            change_owner(&file, old.map_or(workspace_owner, |old| old.owner))?;
        }
        if let Some(old) = old {
            file.set_permissions(Permissions::from_mode(old.mode))?;
        }
        file.write_all(contents)?;
        match mode {
            WriteMode::Overwrite => temporary.rename(name)?,
            // Unlike a rename, a link never replaces.
            WriteMode::CreateNew => linkat(directory, &temporary.name, directory, name, AtFlags::empty())?,
        }
        Ok(())
    }
}

/// Changes the owner, if the file system has owners.
fn change_owner(file: impl AsFd, (user, group): (Uid, Gid)) -> nix::Result<()> {
    match fchown(file, Some(user), Some(group)) {
        Err(Errno::EPERM | Errno::EINVAL) => Ok(()),
        result => result,
    }
}

fn inspect_target(directory: &OwnedFd, name: &Path, path: &str) -> Result<TargetState> {
    let stat = match fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Err(Errno::ENOENT) => return Ok(TargetState::Missing),
        result => result.map_err(|errno| refused(errno, path))?,
    };
    match SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) {
        // Without the set-id bits: new contents must not inherit the trust in the old ones.
        SFlag::S_IFREG => Ok(TargetState::File(ReplacedFile {
            mode: stat.st_mode & 0o777,
            owner: (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid)),
        })),
        SFlag::S_IFLNK => {
            let to = readlinkat(directory, name).map_err(|errno| refused(errno, path))?;
            Ok(TargetState::Link { to: to.into() })
        }
        SFlag::S_IFDIR => Err(not_regular(FileKind::Directory, path)),
        _ => Err(not_regular(FileKind::Other, path)),
    }
}

/// A temporary file that is removed unless it was renamed.
struct TemporaryFile<'a> {
    directory: BorrowedFd<'a>,
    name: PathBuf,
    renamed: bool,
}

impl<'a> TemporaryFile<'a> {
    fn create(directory: BorrowedFd<'a>) -> nix::Result<(File, Self)> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        loop {
            let next = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = PathBuf::from(format!(".remuda-{}-{next}.tmp", std::process::id()));
            match openat(directory, &name, flags, Mode::from_bits_truncate(0o666)) {
                // Left by an earlier process with this id, or created by one in another PID namespace.
                Err(Errno::EEXIST) => {}
                result => return Ok((File::from(result?), Self { directory, name, renamed: false })),
            }
        }
    }

    fn rename(mut self, name: &Path) -> nix::Result<()> {
        renameat(self.directory, &self.name, self.directory, name)?;
        self.renamed = true;
        Ok(())
    }
}

impl Drop for TemporaryFile<'_> {
    fn drop(&mut self) {
        if self.renamed {
            return;
        }
        if let Err(errno) = unlinkat(self.directory, &self.name, UnlinkatFlags::NoRemoveDir) {
            tracing::warn!(%errno, file = %display_safe(&self.name.to_string_lossy()), "cannot remove a temporary file");
        }
    }
}
