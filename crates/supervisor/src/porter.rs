//! Carries files into and out of a container that has a copy of the workspace.
//!
//! It lives as long as the container and does one thing after the other. It is as unprivileged as the commands, which may
//! change files under its hands or kill it: the worker trusts nothing that it says.

use std::{
    ffi::OsStr,
    fs::{self, File, FileTimes, Metadata, Permissions},
    io::{self, Read, Write, stdin, stdout},
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, OpenOptionsExt, PermissionsExt, symlink},
    },
    path::{Path, PathBuf},
};

use nix::libc;
use remuda_supervisor::{
    Decoder, Entry, EntryKind, Frame, FromPorter, ToPorter, UNFINISHED_PREFIX, UNFINISHED_SUFFIX,
    is_plain_path,
};

const CHUNK: usize = 64 * 1024;
/// More is not listed: the worker takes no more.
const MAX_ENTRIES: usize = 200_000;

pub(crate) fn run(directory: &str) -> io::Result<()> {
    let mut porter = Porter {
        directory: directory.into(),
        decoder: Decoder::default(),
        answer: Vec::new(),
        buffer: vec![0; CHUNK],
    };
    loop {
        match porter.hear()? {
            ToPorter::List => porter.list()?,
            ToPorter::Get(path) => porter.get(path)?,
            ToPorter::Put(entry) => porter.put(&entry)?,
            ToPorter::Contents(_) => return Err(io::ErrorKind::InvalidData.into()),
            ToPorter::Remove(path) => porter.remove(path),
            ToPorter::Done => porter.say(&FromPorter::Done),
        }
    }
}

struct Porter {
    directory: PathBuf,
    decoder: Decoder,
    /// What was not written yet.
    answer: Vec<u8>,
    buffer: Vec<u8>,
}

impl Porter {
    /// The next message. Answers are written before it waits for one.
    fn hear(&mut self) -> io::Result<ToPorter> {
        loop {
            if let Some(frame) = self.decoder.next::<ToPorter>().map_err(io::Error::other)? {
                return Ok(frame.message);
            }
            self.flush()?;
            match stdin().lock().read(&mut self.buffer)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => self.decoder.push(&self.buffer[..count]),
            }
        }
    }

    fn say(&mut self, message: &FromPorter) {
        Frame { channel: 0, message: message.clone() }.encode(&mut self.answer);
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut out = stdout().lock();
        out.write_all(&self.answer)?;
        self.answer.clear();
        out.flush()
    }

    fn fail(&mut self, path: Vec<u8>, error: &io::Error) {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        self.say(&FromPorter::Failed { path, errno });
    }

    fn list(&mut self) -> io::Result<()> {
        let mut directories = vec![Vec::new()];
        let mut count = 0;
        while let Some(directory) = directories.pop() {
            let entries = match fs::read_dir(self.place(&directory)) {
                Ok(entries) => entries,
                Err(error) => {
                    self.fail(directory, &error);
                    continue;
                }
            };
            for found in entries.flatten() {
                let name = found.file_name();
                if is_unfinished(&name) {
                    continue;
                }
                count += 1;
                if count > MAX_ENTRIES {
                    self.fail(Vec::new(), &io::Error::from_raw_os_error(libc::E2BIG));
                    self.say(&FromPorter::Done);
                    return Ok(());
                }
                let mut path = directory.clone();
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(name.as_bytes());
                if let Some(entry) = self.look(path) {
                    if entry.kind == EntryKind::Directory {
                        directories.push(entry.path.clone());
                    }
                    self.say(&FromPorter::Entry(entry));
                }
            }
            if self.answer.len() > CHUNK {
                self.flush()?;
            }
        }
        self.say(&FromPorter::Done);
        Ok(())
    }

    /// What is there, if it is something that is carried.
    fn look(&self, path: Vec<u8>) -> Option<Entry> {
        let place = self.place(&path);
        let metadata = fs::symlink_metadata(&place).ok()?;
        let target = if metadata.is_symlink() { fs::read_link(&place).ok()? } else { PathBuf::new() };
        entry(path, &metadata, target.as_os_str().as_bytes())
    }

    fn get(&mut self, path: Vec<u8>) -> io::Result<()> {
        // Not through a link, and not waiting for whoever writes to a FIFO.
        let opened = File::options()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(self.place(&path))
            .and_then(|file| Ok((file.metadata()?, file)));
        let (entry, mut file) = match opened {
            Ok((metadata, file)) if metadata.is_file() => match entry(path, &metadata, b"") {
                Some(entry) => (entry, file),
                None => return Err(io::ErrorKind::InvalidData.into()),
            },
            Ok(_) => {
                self.fail(path, &io::Error::from_raw_os_error(libc::EINVAL));
                return Ok(());
            }
            Err(error) => {
                self.fail(path, &error);
                return Ok(());
            }
        };
        self.say(&FromPorter::Entry(entry));
        let mut buffer = vec![0; CHUNK];
        loop {
            // What cannot be read ends early; its size tells.
            let count = file.read(&mut buffer).unwrap_or(0);
            self.say(&FromPorter::Contents(buffer[..count].to_vec()));
            self.flush()?;
            if count == 0 {
                return Ok(());
            }
        }
    }

    fn put(&mut self, entry: &Entry) -> io::Result<()> {
        let path = entry.path.clone();
        let placed = if !is_plain_path(&path) {
            Err(io::ErrorKind::InvalidInput.into())
        } else {
            match entry.kind {
                EntryKind::Directory => self.put_directory(entry),
                EntryKind::Link => self.put_link(entry),
                EntryKind::File => self.put_file(entry)?,
            }
        };
        match placed.map(|()| self.look(path.clone())) {
            Ok(Some(entry)) => self.say(&FromPorter::Entry(entry)),
            Ok(None) => self.fail(path, &io::Error::from_raw_os_error(libc::ENOENT)),
            Err(error) => self.fail(path, &error),
        }
        Ok(())
    }

    fn put_directory(&self, entry: &Entry) -> io::Result<()> {
        let place = self.place(&entry.path);
        match fs::create_dir(&place) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            result => result?,
        }
        // Whatever else it says, its owner must be able to fill it.
        fs::set_permissions(&place, Permissions::from_mode(entry.mode & 0o777 | 0o700))
    }

    fn put_link(&self, entry: &Entry) -> io::Result<()> {
        let place = self.place(&entry.path);
        match fs::remove_file(&place) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => symlink(OsStr::from_bytes(&entry.target), place),
        }
    }

    /// The outer result is about the conversation, the inner one about the file: its contents are heard to their end anyway.
    fn put_file(&mut self, entry: &Entry) -> io::Result<io::Result<()>> {
        let place = self.place(&entry.path);
        let unfinished = place.with_file_name(format!("{UNFINISHED_PREFIX}porter{UNFINISHED_SUFFIX}"));
        let mut file = fs::remove_file(&unfinished)
            .or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
            .and_then(|()| File::options().write(true).create_new(true).mode(0o600).open(&unfinished));
        loop {
            match self.hear()? {
                ToPorter::Contents(bytes) if bytes.is_empty() => break,
                ToPorter::Contents(bytes) => {
                    if let Ok(open) = &mut file
                        && let Err(error) = open.write_all(&bytes)
                    {
                        file = Err(error);
                    }
                }
                // The worker waits until this much has arrived.
                ToPorter::Done => self.say(&FromPorter::Done),
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        let placed = file.and_then(|file| {
            file.set_permissions(Permissions::from_mode(entry.mode & 0o777))?;
            file.set_times(FileTimes::new().set_modified(entry.modified_at()))?;
            fs::rename(&unfinished, &place)
        });
        if placed.is_err() {
            // It may never have been there.
            drop(fs::remove_file(&unfinished));
        }
        Ok(placed)
    }

    fn remove(&mut self, path: Vec<u8>) {
        if !is_plain_path(&path) {
            return self.fail(path, &io::ErrorKind::InvalidInput.into());
        }
        let place = self.place(&path);
        let is_directory = fs::symlink_metadata(&place).is_ok_and(|metadata| metadata.is_dir());
        let removed = if is_directory { fs::remove_dir(&place) } else { fs::remove_file(&place) };
        match removed {
            Ok(()) => {}
            // Gone already, or filled by someone in the meantime, which is then carried the other way.
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTEMPTY | libc::ENOTDIR)) => {}
            Err(error) => self.fail(path, &error),
        }
    }

    fn place(&self, path: &[u8]) -> PathBuf {
        self.directory.join(Path::new(OsStr::from_bytes(path)))
    }
}

fn is_unfinished(name: &OsStr) -> bool {
    let name = name.as_bytes();
    name.starts_with(UNFINISHED_PREFIX.as_bytes()) && name.ends_with(UNFINISHED_SUFFIX.as_bytes())
}

fn entry(path: Vec<u8>, metadata: &Metadata, target: &[u8]) -> Option<Entry> {
    let kind = if metadata.is_file() {
        EntryKind::File
    } else if metadata.is_dir() {
        EntryKind::Directory
    } else if metadata.is_symlink() {
        EntryKind::Link
    } else {
        return None;
    };
    Some(Entry {
        path,
        kind,
        mode: metadata.mode() & 0o777,
        size: metadata.len(),
        modified: nanoseconds(metadata.mtime(), metadata.mtime_nsec()),
        changed: nanoseconds(metadata.ctime(), metadata.ctime_nsec()),
        target: target.to_vec(),
    })
}

fn nanoseconds(seconds: i64, rest: i64) -> u64 {
    let nanoseconds = i128::from(seconds) * 1_000_000_000 + i128::from(rest);
    u64::try_from(nanoseconds).unwrap_or(0)
}
