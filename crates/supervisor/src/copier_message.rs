//! Messages between a worker and the file copier of a container.
//!
//! Paths are byte strings relative to the copied directory. Neither side trusts the other: each checks every
//! path before it touches a file.

use std::time::{Duration, SystemTime};

use crate::frame::{Malformed, Message};

/// Names of temporary files during a write; they are never copied.
pub const TEMP_FILE_PREFIX: &str = ".remuda-";
pub const TEMP_FILE_SUFFIX: &str = ".tmp";

/// From the worker to the copier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToCopier {
    /// Answered by one [`FromCopier::Entry`] per entry, then [`FromCopier::Done`].
    List,
    /// Answered by the file's entry and its contents, or [`FromCopier::Failed`].
    Get(Vec<u8>),
    /// Followed by the contents if it is a file. Answered by the entry as it was stored, or
    /// [`FromCopier::Failed`].
    Put(Entry),
    /// A chunk of file contents; an empty chunk ends the file.
    Contents(Vec<u8>),
    /// Removes a file, a link or an empty directory. Answered only on failure.
    Remove(Vec<u8>),
    /// Flow control: answered by [`FromCopier::Done`] after the answers to all earlier messages. May be sent
    /// between chunks of contents.
    Done,
}

/// From the copier to the worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromCopier {
    Entry(Entry),
    /// A chunk of file contents; an empty chunk ends the file.
    Contents(Vec<u8>),
    /// An operation failed with this error number.
    Failed {
        path: Vec<u8>,
        errno: i32,
    },
    Done,
}

/// A file, directory or link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub path: Vec<u8>,
    pub kind: EntryKind,
    /// Permission bits.
    pub mode: u32,
    pub size: u64,
    /// Modification time in nanoseconds since 1970.
    pub modified: u64,
    /// Inode change time in nanoseconds. Comparable only with values of the same machine.
    pub changed: u64,
    /// Target of a link.
    pub target: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    File,
    Directory,
    Link,
}

impl Entry {
    /// Whether both describe the same contents, judged by metadata only.
    #[must_use]
    pub fn same_contents(&self, other: &Self) -> bool {
        let alike = self.kind == other.kind && self.target == other.target;
        alike
            && match self.kind {
                // Times and size of a directory change with its contents.
                EntryKind::Directory => self.mode == other.mode,
                EntryKind::Link => true,
                EntryKind::File => {
                    (self.mode, self.size, self.modified, self.changed)
                        == (other.mode, other.size, other.modified, other.changed)
                }
            }
    }

    #[must_use]
    pub fn modified_at(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_nanos(self.modified)
    }

    fn write(&self, payload: &mut Vec<u8>) {
        payload.push(match self.kind {
            EntryKind::File => b'f',
            EntryKind::Directory => b'd',
            EntryKind::Link => b'l',
        });
        payload.extend_from_slice(&self.mode.to_be_bytes());
        for number in [self.size, self.modified, self.changed] {
            payload.extend_from_slice(&number.to_be_bytes());
        }
        write_bytes(&self.path, payload);
        write_bytes(&self.target, payload);
    }

    fn read(payload: &[u8]) -> Result<Self, Malformed> {
        let (kind, rest) = payload.split_first().ok_or(Malformed)?;
        let kind = match kind {
            b'f' => EntryKind::File,
            b'd' => EntryKind::Directory,
            b'l' => EntryKind::Link,
            _ => return Err(Malformed),
        };
        let (mode, mut rest) = rest.split_first_chunk::<4>().ok_or(Malformed)?;
        let mut number = || {
            let (number, after) = rest.split_first_chunk::<8>().ok_or(Malformed)?;
            rest = after;
            Ok(u64::from_be_bytes(*number))
        };
        let (size, modified, changed) = (number()?, number()?, number()?);
        let (path, rest) = read_bytes(rest)?;
        let (target, rest) = read_bytes(rest)?;
        if !rest.is_empty() {
            return Err(Malformed);
        }
        Ok(Self { path, kind, mode: u32::from_be_bytes(*mode), size, modified, changed, target })
    }
}

/// Whether a path is relative and has no `.`, `..` or empty components.
#[must_use]
pub fn is_plain_path(path: &[u8]) -> bool {
    path.len() <= 4096
        && !path.contains(&0)
        && path.split(|byte| *byte == b'/').all(|part| !matches!(part, b"" | b"." | b".."))
}

/// Whether a link at `path` points to something beneath the copied directory.
#[must_use]
pub fn is_inner_link(path: &[u8], target: &[u8]) -> bool {
    if target.is_empty() || target.starts_with(b"/") || target.contains(&0) {
        return false;
    }
    let mut depth = path.iter().filter(|byte| **byte == b'/').count();
    for part in target.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." if depth == 0 => return false,
            b".." => depth -= 1,
            _ => depth += 1,
        }
    }
    true
}

impl Message for ToCopier {
    fn kind(&self) -> u8 {
        match self {
            Self::List => b'L',
            Self::Get(_) => b'G',
            Self::Put(_) => b'P',
            Self::Contents(_) => b'C',
            Self::Remove(_) => b'R',
            Self::Done => b'D',
        }
    }

    fn write(&self, payload: &mut Vec<u8>) {
        match self {
            Self::List | Self::Done => {}
            Self::Get(bytes) | Self::Contents(bytes) | Self::Remove(bytes) => {
                payload.extend_from_slice(bytes)
            }
            Self::Put(entry) => entry.write(payload),
        }
    }

    fn read(kind: u8, payload: &[u8]) -> Result<Self, Malformed> {
        match kind {
            b'L' => Ok(Self::List),
            b'G' => Ok(Self::Get(payload.to_vec())),
            b'P' => Entry::read(payload).map(Self::Put),
            b'C' => Ok(Self::Contents(payload.to_vec())),
            b'R' => Ok(Self::Remove(payload.to_vec())),
            b'D' => Ok(Self::Done),
            _ => Err(Malformed),
        }
    }
}

impl Message for FromCopier {
    fn kind(&self) -> u8 {
        match self {
            Self::Entry(_) => b'E',
            Self::Contents(_) => b'C',
            Self::Failed { .. } => b'F',
            Self::Done => b'D',
        }
    }

    fn write(&self, payload: &mut Vec<u8>) {
        match self {
            Self::Entry(entry) => entry.write(payload),
            Self::Contents(bytes) => payload.extend_from_slice(bytes),
            Self::Failed { path, errno } => {
                payload.extend_from_slice(&errno.to_be_bytes());
                payload.extend_from_slice(path);
            }
            Self::Done => {}
        }
    }

    fn read(kind: u8, payload: &[u8]) -> Result<Self, Malformed> {
        match kind {
            b'E' => Entry::read(payload).map(Self::Entry),
            b'C' => Ok(Self::Contents(payload.to_vec())),
            b'F' => {
                let (errno, path) = payload.split_first_chunk::<4>().ok_or(Malformed)?;
                Ok(Self::Failed { path: path.to_vec(), errno: i32::from_be_bytes(*errno) })
            }
            b'D' => Ok(Self::Done),
            _ => Err(Malformed),
        }
    }
}

fn write_bytes(bytes: &[u8], payload: &mut Vec<u8>) {
    payload.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
    payload.extend_from_slice(bytes);
}

fn read_bytes(bytes: &[u8]) -> Result<(Vec<u8>, &[u8]), Malformed> {
    let (length, rest) = bytes.split_first_chunk::<4>().ok_or(Malformed)?;
    let (bytes, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize).ok_or(Malformed)?;
    Ok((bytes.to_vec(), rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Decoder, Frame};

    fn entry() -> Entry {
        Entry {
            path: b"a/\xff".to_vec(),
            kind: EntryKind::Link,
            mode: 0o755,
            size: 1 << 40,
            modified: 3,
            changed: 4,
            target: b"../b".to_vec(),
        }
    }

    #[test]
    fn messages_round_trip_through_frames() {
        let all = [
            FromCopier::Entry(entry()),
            FromCopier::Contents(b"x".to_vec()),
            FromCopier::Failed { path: b"p".to_vec(), errno: 28 },
            FromCopier::Done,
        ];
        let mut decoder = Decoder::default();
        for message in &all {
            decoder.push(&Frame { channel: 0, message: message.clone() }.to_bytes());
        }
        for message in all {
            assert_eq!(decoder.next().unwrap(), Some(Frame { channel: 0, message }));
        }
        let put = Frame { channel: 0, message: ToCopier::Put(entry()) };
        decoder.push(&put.to_bytes());
        assert_eq!(decoder.next().unwrap(), Some(put));
        assert!(ToCopier::read(b'P', b"f123").is_err());
    }

    #[test]
    fn paths_and_links_that_leave_the_directory_are_rejected() {
        for path in [&b"a"[..], b"a/b", b"..a/b..", b"\xff"] {
            assert!(is_plain_path(path));
        }
        for path in [&b""[..], b"/a", b"a//b", b"a/", b"..", b"a/../b", b"./a", b"a\0"] {
            assert!(!is_plain_path(path), "{path:?}");
        }
        assert!(
            is_inner_link(b"a/b", b"../c") && is_inner_link(b"a", b"b/../c") && is_inner_link(b"a", b".")
        );
        for (path, target) in [
            (&b"a"[..], &b"../c"[..]),
            (b"a/b", b"../../c"),
            (b"a", b"/etc"),
            (b"a", b"b/../../c"),
            (b"a", b""),
        ] {
            assert!(!is_inner_link(path, target), "{target:?}");
        }
    }

    #[test]
    fn directories_with_different_times_count_as_same() {
        let old = Entry { kind: EntryKind::Directory, target: Vec::new(), ..entry() };
        assert!(old.same_contents(&Entry { modified: 9, changed: 9, size: 9, ..old.clone() }));
        let file = Entry { kind: EntryKind::File, ..old.clone() };
        assert!(!file.same_contents(&old));
        assert!(!file.same_contents(&Entry { changed: 9, ..file.clone() }));
    }
}
