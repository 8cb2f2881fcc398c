//! Path resolution beneath a workspace directory.
//!
//! The kernel resolves every path beneath the workspace's descriptor (`openat2` with `RESOLVE_BENEATH`):
//! neither `..`, nor a link, nor a directory that is swapped in the meantime can leave it. Links within the
//! workspace work if they are relative.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
    sync::OnceLock,
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, OpenHow, ResolveFlag, openat2, readlink},
    sys::stat::fstat,
    unistd::{Gid, Uid},
};
use remuda_domain::error::{Code, Error, Result};

use crate::{
    path::display_safe,
    traits::{ByteRange, FileContents, FileKind, FileStat, MAX_READ_BYTES},
};

/// Flags for reading a file. Without `O_NONBLOCK`, opening a FIFO would wait for a writer.
pub(super) const READ: OFlag = OFlag::O_RDONLY.union(OFlag::O_NONBLOCK).union(OFlag::O_NOCTTY);

/// A workspace's directory. Access goes through the descriptor; the paths only serve to recognize absolute
/// names.
#[derive(Debug)]
pub(crate) struct Root {
    directory: OwnedFd,
    /// Path of the workspace as commands see it, if it differs.
    command_path: OnceLock<PathBuf>,
    real: PathBuf,
}

impl Root {
    /// Opens the directory by its real path. Creates it when missing. The caller has checked this path, so no link is
    /// followed: one that appeared since would lead elsewhere.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        if !path.is_absolute() {
            return Err(Error::invalid("workspace_root", "expected an absolute path"));
        }
        let failed = |error: std::io::Error| {
            let path = display_safe(&path.to_string_lossy());
            Error::unavailable(format!("the workspace directory {path} cannot be opened")).with_source(error)
        };
        let directory = remuda_roots::open_directory(path).map_err(failed)?;
        Ok(Self { directory, command_path: OnceLock::new(), real: path.to_owned() })
    }

    /// Sets the path at which commands see the workspace, like `/workspace`: absolute paths beneath that are
    /// accepted as well. Set once, before the first access.
    pub(crate) fn set_command_path(&self, path: PathBuf) {
        let _known = self.command_path.set(path);
    }

    /// Path of the workspace as commands see it.
    pub(crate) fn command_path(&self) -> &Path {
        self.command_path.get().unwrap_or(&self.real)
    }

    /// Owner of the workspace, if this process is root: files that it creates must be usable by that owner.
    pub(super) fn workspace_owner(&self) -> nix::Result<Option<(Uid, Gid)>> {
        if !Uid::effective().is_root() {
            return Ok(None);
        }
        let stat = fstat(&self.directory)?;
        Ok(Some((Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid))))
    }

    pub(crate) fn directory(&self, path: &str) -> Result<OwnedFd> {
        self.relative(path)
            .and_then(|relative| {
                let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
                self.open_beneath(&relative, flags).map_err(|errno| refused(errno, path))
            })
            .map_err(|error| error.at("cwd"))
    }

    pub(crate) fn read(&self, path: &str, range: ByteRange) -> Result<FileContents> {
        let fd = self.open_beneath(&self.relative(path)?, READ).map_err(|errno| refused(errno, path))?;
        let mut file = File::from(fd);
        let failed = |error: std::io::Error| failed(error, path);
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(not_regular(kind(&metadata), path));
        }
        if range.offset >= metadata.len() {
            return Ok(FileContents { bytes: Vec::new(), size: metadata.len() });
        }
        let limit = range.limit.min(MAX_READ_BYTES);
        let expected = (metadata.len() - range.offset).min(limit);
        let mut bytes = Vec::with_capacity(usize::try_from(expected).unwrap_or_default());
        file.seek(SeekFrom::Start(range.offset)).map_err(failed)?;
        file.take(limit).read_to_end(&mut bytes).map_err(failed)?;
        Ok(FileContents { bytes, size: metadata.len() })
    }

    pub(crate) fn stat(&self, path: &str) -> Result<FileStat> {
        let fd =
            self.open_beneath(&self.relative(path)?, OFlag::O_PATH).map_err(|errno| refused(errno, path))?;
        let metadata = File::from(fd).metadata().map_err(|error| failed(error, path))?;
        Ok(FileStat {
            kind: kind(&metadata),
            size: metadata.len(),
            mode: metadata.mode() & 0o7777,
            modified: metadata.modified().ok(),
            inode: metadata.ino(),
        })
    }

    /// Makes a path relative to the workspace. It may still contain `..`, which the kernel checks.
    pub(crate) fn relative(&self, path: &str) -> Result<PathBuf> {
        let named = Path::new(path);
        if !named.is_absolute() {
            return Ok(named.to_owned());
        }
        // The commands' path has priority: a path from their output has their meaning.
        let inside = [self.command_path.get(), Some(&self.real)]
            .into_iter()
            .flatten()
            .find_map(|root| named.strip_prefix(root).ok());
        match inside {
            Some(inside) if inside.as_os_str().is_empty() => Ok(".".into()),
            Some(inside) => Ok(inside.to_owned()),
            None => Err(refused(Errno::EXDEV, path)),
        }
    }

    /// Real path of an open file or directory, relative to the workspace; empty for the workspace itself.
    pub(super) fn real_path(&self, open: &OwnedFd) -> nix::Result<PathBuf> {
        let link = |fd: &OwnedFd| readlink(Path::new(&format!("/proc/self/fd/{}", fd.as_raw_fd())));
        let (root, place) = (PathBuf::from(link(&self.directory)?), PathBuf::from(link(open)?));
        place.strip_prefix(root).map(Path::to_owned).map_err(|_| Errno::EXDEV)
    }

    /// Opens a path, following links that stay within the workspace.
    pub(crate) fn open_beneath(&self, path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
        self.open_how(path, flags, ResolveFlag::empty())
    }

    /// Opens a path without following any link. An empty path is the workspace.
    pub(super) fn open_exactly(&self, path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        self.open_how(path, flags | OFlag::O_NOFOLLOW, ResolveFlag::RESOLVE_NO_SYMLINKS)
    }

    fn open_how(&self, path: &Path, flags: OFlag, resolve: ResolveFlag) -> nix::Result<OwnedFd> {
        const TRIES: usize = 16;
        let how = OpenHow::new()
            .flags(flags | OFlag::O_CLOEXEC)
            .resolve(resolve | ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        for _ in 1..TRIES {
            match openat2(&self.directory, path, how) {
                // A concurrent rename: the kernel cannot be sure that the path stayed beneath.
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                result => return result,
            }
        }
        openat2(&self.directory, path, how)
    }
}

fn kind(metadata: &std::fs::Metadata) -> FileKind {
    if metadata.is_file() {
        FileKind::File
    } else if metadata.is_dir() {
        FileKind::Directory
    } else {
        FileKind::Other
    }
}

pub(crate) fn not_regular(kind: FileKind, path: &str) -> Error {
    let what = match kind {
        FileKind::Directory => "a directory",
        FileKind::File | FileKind::Other => "not a regular file",
    };
    Error::invalid("path", format!("{} is {what}", display_safe(path)))
}

pub(crate) fn failed(error: std::io::Error, path: &str) -> Error {
    match error.raw_os_error() {
        Some(errno) => refused(Errno::from_raw(errno), path),
        None => Error::new(Code::ToolFailed, format!("{} cannot be used", display_safe(path)))
            .at("path")
            .with_source(error),
    }
}

/// Maps an error number of the kernel to an error about the path.
pub(crate) fn refused(errno: Errno, path: &str) -> Error {
    let (code, what) = match errno {
        Errno::EXDEV => (Code::PathNotAllowed, "leads out of the workspace"),
        Errno::ELOOP => (Code::PathNotAllowed, "leads through a link that is not followed"),
        Errno::ENOENT => (Code::FileNotFound, "does not exist"),
        Errno::ENOTDIR => (Code::FileNotFound, "leads through something that is not a directory"),
        Errno::EISDIR => (Code::InvalidArgument, "is a directory"),
        Errno::ENOTEMPTY => (Code::InvalidArgument, "is a directory that is not empty"),
        Errno::EBUSY => (Code::InvalidArgument, "is in use as a whole and cannot be changed"),
        Errno::ENXIO => (Code::InvalidArgument, "is not a regular file"),
        Errno::ENAMETOOLONG => (Code::InvalidArgument, "has a name that is too long"),
        Errno::EEXIST => (Code::AlreadyExists, "exists already"),
        Errno::EACCES | Errno::EPERM | Errno::EROFS => (Code::PermissionDenied, "may not be used that way"),
        Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG => (Code::ToolFailed, "does not fit: no space is left"),
        Errno::ENOSYS => (Code::Unavailable, "cannot be opened safely: this needs Linux 5.6 or later"),
        _ => (Code::ToolFailed, "cannot be used"),
    };
    Error::new(code, format!("{} {what}", display_safe(path))).at("path").with_source(errno)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absolute_paths_of_the_workspace_are_accepted() {
        let directory = tempfile::tempdir().unwrap();
        let given = directory.path().join("w");
        let root = Root::open(&given).unwrap();
        root.set_command_path("/workspace".into());
        for path in ["a/b", "/workspace/a/b", "/workspace//a/b", &format!("{}/a/b", given.display())] {
            assert_eq!(root.relative(path).unwrap(), Path::new("a/b"), "{path}");
        }
        assert_eq!(root.relative("/workspace").unwrap(), Path::new("."));
        for path in ["/workspaces/a", "/work", "/a/b"] {
            assert_eq!(root.relative(path).unwrap_err().code(), Code::PathNotAllowed, "{path}");
        }
        root.write("/workspace/a/b", b"x", crate::WriteMode::CreateNew).unwrap();
        assert_eq!(root.stat("a/b").unwrap().size, 1);
        for path in ["/workspace/../secret", "/workspace/a/../../secret"] {
            assert_eq!(root.stat(path).unwrap_err().code(), Code::PathNotAllowed, "{path}");
        }
    }

    #[test]
    fn real_path_resolves_links_within_the_workspace() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::open(directory.path()).unwrap();
        std::fs::create_dir_all(directory.path().join("a/b")).unwrap();
        std::os::unix::fs::symlink("a", directory.path().join("l")).unwrap();
        let open = |path: &str| root.open_beneath(Path::new(path), OFlag::O_PATH).unwrap();
        assert_eq!(root.real_path(&open("l/../l/b")).unwrap(), Path::new("a/b"));
        assert_eq!(root.real_path(&open(".")).unwrap(), Path::new(""));
        assert_eq!(root.open_exactly(Path::new("l/b"), OFlag::O_PATH).unwrap_err(), Errno::ELOOP);
    }
}
