//! Opens and reads the files of definitions.
//!
//! A workspace is written by a tenant, and tools may change it while it is read. So the kernel resolves each path beneath
//! the workspace's descriptor, and a link that leads out of the workspace is refused. The operator's directories are
//! trusted and links are followed: mounted configuration often consists of links. Each path that was opened is recorded
//! with its [`Stamp`](stamp::Stamp), so that the cache can tell whether anything has changed.

mod stamp;

use std::{
    cell::{Cell, RefCell},
    fs::File,
    io::Read as _,
    os::fd::OwnedFd,
    path::{Component, Path, PathBuf},
};

use nix::{
    dir::Dir,
    errno::Errno,
    fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, open, openat2},
    sys::stat::Mode,
};

pub(crate) use self::stamp::FileStamps;
use crate::{
    environment::Owner,
    parse::{Fault, Position},
};

/// Bytes of one file of definitions.
pub(crate) const MAX_FILE: u64 = 1024 * 1024;
/// Bytes of all files of definitions, which bounds the size of a stored version.
const MAX_TOTAL: u64 = 8 * 1024 * 1024;
/// Entries of a directory of definitions.
const MAX_ENTRIES: usize = 20_000;

/// A directory with definitions.
#[derive(Debug)]
pub(crate) struct Files<'a> {
    pub owner: Owner,
    base: PathBuf,
    directory: Option<OwnedFd>,
    stamps: &'a RefCell<FileStamps>,
    /// Bytes that may still be read.
    bytes_left: &'a Cell<u64>,
}

/// The state of one load, shared by all its directories.
#[derive(Debug)]
pub(crate) struct LoadState {
    pub stamps: RefCell<FileStamps>,
    bytes_left: Cell<u64>,
}

impl LoadState {
    pub(crate) fn new() -> Self {
        Self { stamps: RefCell::default(), bytes_left: Cell::new(MAX_TOTAL) }
    }
}

/// The text of a file, possibly truncated.
#[derive(Debug)]
pub(crate) struct FileText {
    pub text: String,
    pub truncated: bool,
}

impl<'a> Files<'a> {
    /// Opens a workspace by its real path.
    pub(crate) fn workspace(root: &Path, state: &'a LoadState) -> Result<Self, Fault> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        // The caller has checked this path. A link in it would lead to another one.
        let how = OpenHow::new().flags(flags).resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
        let directory = openat2(AT_FDCWD, root, how).map_err(|errno| {
            // Only on failure: other files that come and go in the root must not invalidate the cache.
            state.stamps.borrow_mut().record(root);
            refused(errno, "directory")
        })?;
        Ok(Self { directory: Some(directory), ..Self::new(Owner::Workspace, root, state) })
    }

    pub(crate) fn platform(directory: &Path, state: &'a LoadState) -> Self {
        Self::new(Owner::Platform, directory, state)
    }

    fn new(owner: Owner, base: &Path, state: &'a LoadState) -> Self {
        Self {
            owner,
            base: base.to_owned(),
            directory: None,
            stamps: &state.stamps,
            bytes_left: &state.bytes_left,
        }
    }

    /// The path for problem messages: relative to the workspace, or absolute for the platform.
    pub(crate) fn display_path(&self, path: &Path) -> String {
        match self.owner {
            Owner::Workspace => path.display().to_string(),
            Owner::Platform => self.base.join(path).display().to_string(),
        }
    }

    /// The absolute path.
    pub(crate) fn absolute(&self, path: &Path) -> PathBuf {
        self.base.join(path)
    }

    /// Reads a file; `None` if it does not exist. Removes a byte order mark and converts CRLF to LF.
    pub(crate) fn read(&self, path: &Path) -> Result<Option<String>, Fault> {
        match self.read_some(path, MAX_FILE)? {
            Some(contents) if contents.truncated => {
                let message = format!("is larger than {} KiB", MAX_FILE / 1024);
                Err(Fault::new(Position::FILE, message))
            }
            contents => Ok(contents.map(|contents| contents.text)),
        }
    }

    /// The same for at most `limit` bytes. A longer text is cut at the end of a line.
    pub(crate) fn read_some(&self, path: &Path, limit: u64) -> Result<Option<FileText>, Fault> {
        let Some(file) = self.open_file(path)? else { return Ok(None) };
        let mut bytes = Vec::new();
        let left = self.bytes_left.get();
        let read = file.take(limit.min(left) + 1).read_to_end(&mut bytes);
        read.map_err(|error| refused(errno(&error), "file"))?;
        let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if size > left {
            let message = format!("is not read: all definitions together exceed {} MiB", MAX_TOTAL >> 20);
            return Err(Fault::new(Position::FILE, message));
        }
        self.bytes_left.set(left - size);
        let truncated = size > limit;
        if truncated {
            let line = bytes.iter().rposition(|byte| *byte == b'\n').map(|end| end + 1);
            // If the first line is too long, cut within it, but not within a character.
            let character = || bytes.iter().rposition(|byte| byte & 0xc0 != 0x80).unwrap_or_default();
            let end = line.unwrap_or_else(character);
            bytes.truncate(end);
        }
        let text = String::from_utf8(bytes).map_err(|error| {
            let valid = error.utf8_error().valid_up_to();
            let line = error.as_bytes()[..valid].iter().filter(|byte| **byte == b'\n').count() + 1;
            Fault::new(Position::line(line), "is not UTF-8 text")
        })?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text).replace("\r\n", "\n");
        Ok(Some(FileText { text, truncated }))
    }

    /// Whether there is a regular file that can be opened.
    pub(crate) fn has_file(&self, path: &Path) -> Result<bool, Fault> {
        Ok(self.open_file(path)?.is_some())
    }

    fn open_file(&self, path: &Path) -> Result<Option<File>, Fault> {
        // Without O_NONBLOCK, opening a FIFO would wait for a writer.
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let Some(descriptor) = self.open(path, flags, "file")? else { return Ok(None) };
        let file = File::from(descriptor);
        let metadata = file.metadata().map_err(|error| refused(errno(&error), "file"))?;
        if metadata.is_dir() {
            return Err(refused(Errno::EISDIR, "file"));
        }
        if !metadata.is_file() {
            return Err(Fault::new(Position::FILE, "is not a regular file"));
        }
        Ok(Some(file))
    }

    /// The sorted names in a directory, without hidden ones; `None` if it does not exist.
    pub(crate) fn list(&self, path: &Path) -> Result<Option<Vec<String>>, Fault> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
        let Some(descriptor) = self.open(path, flags, "directory")? else { return Ok(None) };
        let mut directory = Dir::from_fd(descriptor).map_err(|errno| refused(errno, "directory"))?;
        let mut names = Vec::new();
        for entry in directory.iter() {
            let entry = entry.map_err(|errno| refused(errno, "directory"))?;
            if names.len() >= MAX_ENTRIES {
                let message = format!("is not read: it holds more than {MAX_ENTRIES} files");
                return Err(Fault::new(Position::FILE, message));
            }
            let name = entry.file_name().to_string_lossy();
            if !name.starts_with('.') {
                names.push(name.into_owned());
            }
        }
        names.sort_unstable();
        Ok(Some(names))
    }

    fn open(&self, path: &Path, flags: OFlag, kind: &'static str) -> Result<Option<OwnedFd>, Fault> {
        let absolute = self.base.join(path);
        self.stamps.borrow_mut().record(&absolute);
        let flags = flags | OFlag::O_CLOEXEC;
        let opened = match &self.directory {
            None => open(&absolute, flags, Mode::empty()),
            Some(directory) => open_beneath(directory, path, flags),
        };
        match opened {
            Ok(descriptor) => Ok(Some(descriptor)),
            // Report a dangling link instead of treating it as missing.
            Err(Errno::ENOENT) if absolute.is_symlink() => {
                Err(Fault::new(Position::FILE, "is a link that leads nowhere"))
            }
            Err(Errno::ENOENT) => Ok(None),
            Err(Errno::ENOTDIR) if kind == "file" => Ok(None),
            Err(errno) => Err(refused(errno, kind)),
        }
    }
}

pub(crate) fn open_beneath(directory: &OwnedFd, path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
    const TRIES: usize = 16;
    let how = OpenHow::new()
        .flags(flags)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    for _ in 1..TRIES {
        match openat2(directory, path, how) {
            // A concurrent rename: the kernel cannot tell whether the path stayed beneath the directory.
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            result => return result,
        }
    }
    openat2(directory, path, how)
}

fn errno(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw)
}

fn refused(errno: Errno, kind: &str) -> Fault {
    let message = match errno {
        Errno::EXDEV => "leads out of the workspace, which is not followed".to_owned(),
        Errno::ELOOP => "is a link that leads in a circle".to_owned(),
        Errno::EISDIR => "is a directory, expected a file".to_owned(),
        Errno::ENOTDIR => "is not a directory, expected one".to_owned(),
        Errno::ENOENT => format!("there is no such {kind}"),
        Errno::ENXIO => "is not a regular file".to_owned(),
        Errno::EACCES | Errno::EPERM => "may not be read".to_owned(),
        Errno::ENAMETOOLONG => "has a name that is too long".to_owned(),
        Errno::ENOSYS => "cannot be opened safely: this needs Linux 5.6 or later".to_owned(),
        errno => format!("cannot be read: {}", errno.desc().to_lowercase()),
    };
    Fault::new(Position::FILE, message)
}

/// Whether a path in a definition is relative and has no `..`.
pub(crate) fn is_descendant_path(path: &str) -> bool {
    let mut components = Path::new(path).components();
    !path.is_empty()
        && path.len() <= 4096
        && !path.contains('\0')
        && components.all(|component| matches!(component, Component::Normal(_) | Component::CurDir))
}
