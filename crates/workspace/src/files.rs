//! The files definitions are read from.
//!
//! A workspace is written by a tenant, and while it is read their tools may change it: so each path is resolved by the
//! kernel beneath the workspace's descriptor, and a link that leads out is refused. The operator's directories are
//! trusted: a mounted configuration is often made of links. Everything that was looked at is remembered with its
//! [`Stamp`](stamp::Stamp), so that a later look tells whether reading again would give something else.

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
    fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2},
    sys::stat::Mode,
};

pub(crate) use self::stamp::Seen;
use crate::{
    environment::Owner,
    text::{Fault, Position},
};

/// One file of definitions.
pub(crate) const MAX_FILE: u64 = 1024 * 1024;
/// All of them together: what a run keeps as its version.
const MAX_TOTAL: u64 = 8 * 1024 * 1024;
/// Names in a directory of definitions.
const MAX_ENTRIES: usize = 20_000;

/// A directory with definitions.
#[derive(Debug)]
pub(crate) struct Files<'a> {
    pub owner: Owner,
    base: PathBuf,
    directory: Option<OwnedFd>,
    seen: &'a RefCell<Seen>,
    /// What may still be read.
    budget: &'a Cell<u64>,
}

/// Of one reading, over all its directories.
#[derive(Debug)]
pub(crate) struct Budget {
    pub seen: RefCell<Seen>,
    left: Cell<u64>,
}

impl Budget {
    pub(crate) fn new() -> Self {
        Self { seen: RefCell::default(), left: Cell::new(MAX_TOTAL) }
    }
}

/// A text and whether all of it was read.
#[derive(Debug)]
pub(crate) struct Contents {
    pub text: String,
    pub cut: bool,
}

impl<'a> Files<'a> {
    pub(crate) fn workspace(root: &Path, budget: &'a Budget) -> Result<Self, Fault> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let directory = open(root, flags, Mode::empty()).map_err(|errno| {
            // Only then: files that come and go in the root mean nothing.
            budget.seen.borrow_mut().look(root);
            refused(errno, "directory")
        })?;
        Ok(Self { directory: Some(directory), ..Self::new(Owner::Workspace, root, budget) })
    }

    pub(crate) fn platform(directory: &Path, budget: &'a Budget) -> Self {
        Self::new(Owner::Platform, directory, budget)
    }

    fn new(owner: Owner, base: &Path, budget: &'a Budget) -> Self {
        Self { owner, base: base.to_owned(), directory: None, seen: &budget.seen, budget: &budget.left }
    }

    /// How a file is called in problems: from the workspace on, or in full.
    pub(crate) fn shown(&self, path: &Path) -> String {
        match self.owner {
            Owner::Workspace => path.display().to_string(),
            Owner::Platform => self.base.join(path).display().to_string(),
        }
    }

    /// Where it is in the file system.
    pub(crate) fn absolute(&self, path: &Path) -> PathBuf {
        self.base.join(path)
    }

    /// The text of a file; `None` if there is none. Without a byte order mark, with `\n` at the end of lines.
    pub(crate) fn read(&self, path: &Path) -> Result<Option<String>, Fault> {
        match self.read_some(path, MAX_FILE)? {
            Some(contents) if contents.cut => {
                let message = format!("is larger than {} KiB", MAX_FILE / 1024);
                Err(Fault::new(Position::FILE, message))
            }
            contents => Ok(contents.map(|contents| contents.text)),
        }
    }

    /// The same, up to a size, cut at the end of a line.
    pub(crate) fn read_some(&self, path: &Path, limit: u64) -> Result<Option<Contents>, Fault> {
        let Some(file) = self.open_file(path)? else { return Ok(None) };
        let mut bytes = Vec::new();
        let left = self.budget.get();
        let read = file.take(limit.min(left) + 1).read_to_end(&mut bytes);
        read.map_err(|error| refused(errno(&error), "file"))?;
        let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if size > left {
            let message = format!("is not read: all definitions together exceed {} MiB", MAX_TOTAL >> 20);
            return Err(Fault::new(Position::FILE, message));
        }
        self.budget.set(left - size);
        let cut = size > limit;
        if cut {
            let line = bytes.iter().rposition(|byte| *byte == b'\n').map(|end| end + 1);
            // A line that is too long for that is cut itself, but not in the middle of a character.
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
        Ok(Some(Contents { text, cut }))
    }

    /// Whether there is a file that could be read.
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

    /// The names in a directory, in order; `None` if there is none. Hidden ones are left out.
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
        self.seen.borrow_mut().look(&absolute);
        let flags = flags | OFlag::O_CLOEXEC;
        let opened = match &self.directory {
            None => open(&absolute, flags, Mode::empty()),
            Some(directory) => beneath(directory, path, flags),
        };
        match opened {
            Ok(descriptor) => Ok(Some(descriptor)),
            // A dangling link is there, and leads nowhere: that is worth a word.
            Err(Errno::ENOENT) if absolute.is_symlink() => {
                Err(Fault::new(Position::FILE, "is a link that leads nowhere"))
            }
            Err(Errno::ENOENT) => Ok(None),
            Err(Errno::ENOTDIR) if kind == "file" => Ok(None),
            Err(errno) => Err(refused(errno, kind)),
        }
    }
}

pub(crate) fn beneath(directory: &OwnedFd, path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
    const TRIES: usize = 16;
    let how = OpenHow::new()
        .flags(flags)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    for _ in 1..TRIES {
        match openat2(directory, path, how) {
            // Something was renamed meanwhile, and the kernel is not sure of having stayed beneath.
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

/// A path that a definition names: relative, and not upwards.
pub(crate) fn is_inside(path: &str) -> bool {
    let mut components = Path::new(path).components();
    !path.is_empty()
        && path.len() <= 4096
        && !path.contains('\0')
        && components.all(|component| matches!(component, Component::Normal(_) | Component::CurDir))
}
