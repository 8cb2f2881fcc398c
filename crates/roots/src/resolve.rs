//! Real paths, and opening directories by them.

use std::{
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2},
    sys::stat::{Mode, mkdirat},
};

use crate::private::PRIVATE_DIRECTORY;

const NEW_DIRECTORY: Mode = Mode::from_bits_truncate(PRIVATE_DIRECTORY);
const TRIES: usize = 16;

/// The path with all links resolved. Its last parts may not exist yet; they are kept as they are.
pub fn resolve(path: &Path) -> io::Result<PathBuf> {
    match fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        outcome => return outcome,
    }
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Ok(resolve(parent)?.join(name)),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// Opens a directory by its real path, and creates what is missing, for the owner alone. Fails with `ELOOP` if a part of the path is a link:
/// then it has changed since it was resolved.
pub fn open_directory(real: &Path) -> io::Result<OwnedFd> {
    if !real.is_absolute() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    open_or_create(real).map_err(Into::into)
}

fn open_or_create(real: &Path) -> nix::Result<OwnedFd> {
    match open(AT_FDCWD, real) {
        Err(Errno::ENOENT) => {}
        outcome => return outcome,
    }
    let (Some(parent), Some(name)) = (real.parent(), real.file_name()) else { return Err(Errno::ENOENT) };
    let parent = open_or_create(parent)?;
    match mkdirat(&parent, Path::new(name), NEW_DIRECTORY) {
        // Another worker has created it.
        Ok(()) | Err(Errno::EEXIST) => open(&parent, Path::new(name)),
        Err(error) => Err(error),
    }
}

fn open(parent: impl std::os::fd::AsFd, path: &Path) -> nix::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    for _ in 1..TRIES {
        match openat2(&parent, path, how) {
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            outcome => return outcome,
        }
    }
    openat2(&parent, path, how)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_resolved_and_missing_parts_are_kept() {
        let base = tempfile::tempdir().unwrap();
        let base = base.path().canonicalize().unwrap();
        fs::create_dir(base.join("real")).unwrap();
        symlink("real", base.join("link")).unwrap();
        assert_eq!(resolve(&base.join("link")).unwrap(), base.join("real"));
        assert_eq!(resolve(&base.join("link/a/b")).unwrap(), base.join("real/a/b"));
        assert_eq!(resolve(&base.join("link/..")).unwrap(), base);
        assert!(resolve(&base.join("missing/..")).is_err());
        symlink("loop", base.join("loop")).unwrap();
        assert!(resolve(&base.join("loop/a")).is_err());
    }

    #[test]
    fn directory_is_created_but_no_link_is_followed() {
        let base = tempfile::tempdir().unwrap();
        let base = base.path().canonicalize().unwrap();
        open_directory(&base.join("a/b/c")).unwrap();
        assert!(base.join("a/b/c").is_dir());
        for created in ["a", "a/b", "a/b/c"] {
            assert_eq!(crate::exposed(&base.join(created)), None, "{created}");
        }

        let outside = tempfile::tempdir().unwrap();
        fs::remove_dir(base.join("a/b/c")).unwrap();
        fs::remove_dir(base.join("a/b")).unwrap();
        symlink(outside.path(), base.join("a/b")).unwrap();
        for path in ["a/b", "a/b/c"] {
            let error = open_directory(&base.join(path)).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(Errno::ELOOP as i32), "{path}");
        }
        symlink(outside.path().join("new"), base.join("dangling")).unwrap();
        assert!(open_directory(&base.join("dangling")).is_err());
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0, "nothing was created outside");
    }
}
