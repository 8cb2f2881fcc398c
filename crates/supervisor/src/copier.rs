//! File copier: transfers files into and out of a container that has its own copy of the workspace.
//!
//! It lives as long as the container and handles one request at a time. It is as unprivileged as the
//! commands, which may change its files or kill it: the worker trusts nothing that it reports.

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
    Decoder, Entry, EntryKind, Frame, FromCopier, TEMP_FILE_PREFIX, TEMP_FILE_SUFFIX, ToCopier, is_plain_path,
};

const CHUNK: usize = 64 * 1024;
/// Limit of one listing; the worker accepts no more.
const MAX_ENTRIES: usize = 200_000;

pub(crate) fn run(directory: &str) -> io::Result<()> {
    let mut copier = Copier {
        directory: directory.into(),
        decoder: Decoder::default(),
        output: Vec::new(),
        buffer: vec![0; CHUNK],
    };
    loop {
        match copier.receive()? {
            ToCopier::List => copier.list()?,
            ToCopier::Get(path) => copier.get(path)?,
            ToCopier::Put(entry) => copier.put(&entry)?,
            ToCopier::Contents(_) => return Err(io::ErrorKind::InvalidData.into()),
            ToCopier::Remove(path) => copier.remove(path),
            ToCopier::Done => copier.send(&FromCopier::Done),
        }
    }
}

struct Copier {
    directory: PathBuf,
    decoder: Decoder,
    /// Encoded frames that were not written yet.
    output: Vec<u8>,
    buffer: Vec<u8>,
}

impl Copier {
    /// Returns the next message. Flushes pending output before it waits.
    fn receive(&mut self) -> io::Result<ToCopier> {
        loop {
            if let Some(frame) = self.decoder.next::<ToCopier>().map_err(io::Error::other)? {
                return Ok(frame.message);
            }
            self.flush()?;
            match stdin().lock().read(&mut self.buffer)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => self.decoder.push(&self.buffer[..count]),
            }
        }
    }

    fn send(&mut self, message: &FromCopier) {
        Frame { channel: 0, message: message.clone() }.encode(&mut self.output);
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut out = stdout().lock();
        out.write_all(&self.output)?;
        self.output.clear();
        out.flush()
    }

    fn fail(&mut self, path: Vec<u8>, error: &io::Error) {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        self.send(&FromCopier::Failed { path, errno });
    }

    fn list(&mut self) -> io::Result<()> {
        let mut directories = vec![Vec::new()];
        let mut count = 0;
        while let Some(directory) = directories.pop() {
            let entries = match fs::read_dir(self.absolute(&directory)) {
                Ok(entries) => entries,
                Err(error) => {
                    self.fail(directory, &error);
                    continue;
                }
            };
            for found in entries.flatten() {
                let name = found.file_name();
                if is_temp_file(&name) {
                    continue;
                }
                count += 1;
                if count > MAX_ENTRIES {
                    self.fail(Vec::new(), &io::Error::from_raw_os_error(libc::E2BIG));
                    self.send(&FromCopier::Done);
                    return Ok(());
                }
                let mut path = directory.clone();
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(name.as_bytes());
                if let Some(entry) = self.read_entry(path) {
                    if entry.kind == EntryKind::Directory {
                        directories.push(entry.path.clone());
                    }
                    self.send(&FromCopier::Entry(entry));
                }
            }
            if self.output.len() > CHUNK {
                self.flush()?;
            }
        }
        self.send(&FromCopier::Done);
        Ok(())
    }

    /// Reads the entry at a path, if it is of a kind that is copied.
    fn read_entry(&self, path: Vec<u8>) -> Option<Entry> {
        let full_path = self.absolute(&path);
        let metadata = fs::symlink_metadata(&full_path).ok()?;
        let target = if metadata.is_symlink() { fs::read_link(&full_path).ok()? } else { PathBuf::new() };
        entry(path, &metadata, target.as_os_str().as_bytes())
    }

    fn get(&mut self, path: Vec<u8>) -> io::Result<()> {
        // Follows no link, and does not block on a FIFO without a writer.
        let opened = File::options()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(self.absolute(&path))
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
        self.send(&FromCopier::Entry(entry));
        let mut buffer = vec![0; CHUNK];
        loop {
            // A read error ends the contents early; the worker detects it by the size.
            let count = file.read(&mut buffer).unwrap_or(0);
            self.send(&FromCopier::Contents(buffer[..count].to_vec()));
            self.flush()?;
            if count == 0 {
                return Ok(());
            }
        }
    }

    fn put(&mut self, entry: &Entry) -> io::Result<()> {
        let path = entry.path.clone();
        let stored = if !is_plain_path(&path) {
            Err(io::ErrorKind::InvalidInput.into())
        } else {
            match entry.kind {
                EntryKind::Directory => self.put_directory(entry),
                EntryKind::Link => self.put_link(entry),
                EntryKind::File => self.put_file(entry)?,
            }
        };
        match stored.map(|()| self.read_entry(path.clone())) {
            Ok(Some(entry)) => self.send(&FromCopier::Entry(entry)),
            Ok(None) => self.fail(path, &io::Error::from_raw_os_error(libc::ENOENT)),
            Err(error) => self.fail(path, &error),
        }
        Ok(())
    }

    fn put_directory(&self, entry: &Entry) -> io::Result<()> {
        let full_path = self.absolute(&entry.path);
        match fs::create_dir(&full_path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            result => result?,
        }
        // The owner must always be able to create files in it.
        fs::set_permissions(&full_path, Permissions::from_mode(entry.mode & 0o777 | 0o700))
    }

    fn put_link(&self, entry: &Entry) -> io::Result<()> {
        let full_path = self.absolute(&entry.path);
        match fs::remove_file(&full_path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => symlink(OsStr::from_bytes(&entry.target), full_path),
        }
    }

    /// The outer result is about the stream, the inner one about the file. The contents are read to their end
    /// in either case.
    fn put_file(&mut self, entry: &Entry) -> io::Result<io::Result<()>> {
        let full_path = self.absolute(&entry.path);
        let temporary = full_path.with_file_name(format!("{TEMP_FILE_PREFIX}porter{TEMP_FILE_SUFFIX}"));
        let mut file = fs::remove_file(&temporary)
            .or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
            .and_then(|()| File::options().write(true).create_new(true).mode(0o600).open(&temporary));
        loop {
            match self.receive()? {
                ToCopier::Contents(bytes) if bytes.is_empty() => break,
                ToCopier::Contents(bytes) => {
                    if let Ok(open) = &mut file
                        && let Err(error) = open.write_all(&bytes)
                    {
                        file = Err(error);
                    }
                }
                // Flow control: the worker waits until this much has arrived.
                ToCopier::Done => self.send(&FromCopier::Done),
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        let stored = file.and_then(|file| {
            file.set_permissions(Permissions::from_mode(entry.mode & 0o777))?;
            file.set_times(FileTimes::new().set_modified(entry.modified_at()))?;
            fs::rename(&temporary, &full_path)
        });
        if stored.is_err() {
            // It may never have been created.
            drop(fs::remove_file(&temporary));
        }
        Ok(stored)
    }

    fn remove(&mut self, path: Vec<u8>) {
        if !is_plain_path(&path) {
            return self.fail(path, &io::ErrorKind::InvalidInput.into());
        }
        let full_path = self.absolute(&path);
        let is_directory = fs::symlink_metadata(&full_path).is_ok_and(|metadata| metadata.is_dir());
        let removed = if is_directory { fs::remove_dir(&full_path) } else { fs::remove_file(&full_path) };
        match removed {
            Ok(()) => {}
            // Already removed, or a command created files in it. Those are copied back to the host later.
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTEMPTY | libc::ENOTDIR)) => {}
            Err(error) => self.fail(path, &error),
        }
    }

    fn absolute(&self, path: &[u8]) -> PathBuf {
        self.directory.join(Path::new(OsStr::from_bytes(path)))
    }
}

fn is_temp_file(name: &OsStr) -> bool {
    let name = name.as_bytes();
    name.starts_with(TEMP_FILE_PREFIX.as_bytes()) && name.ends_with(TEMP_FILE_SUFFIX.as_bytes())
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
