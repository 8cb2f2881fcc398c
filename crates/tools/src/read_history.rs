//! History of the files that a session has read, and their contents at that time.
//!
//! `Write` and `Edit` change only files that the session has read or written itself and that are unchanged
//! since. Files are compared by digest; without a digest, by size, time and inode.

use std::{
    path::{Component, Path},
    sync::Arc,
    time::UNIX_EPOCH,
};

use remuda_domain::{
    SessionId,
    error::{Code, Error, Result},
};
use remuda_sandbox::{FileStat, Sandbox, path::display_safe};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;

use crate::state;

/// Beyond this, the oldest records are dropped.
const MAX_FILES: usize = 1000;
/// Number of locks; sessions that share one wait for each other briefly.
const LOCKS: usize = 64;

/// Read histories of sessions, stored in the workspace. Clones share their locks.
#[derive(Clone, Debug)]
pub(crate) struct ReadHistory {
    /// Serialize changes of a session's history: tool calls of a run may be parallel.
    locks: Arc<[Semaphore; LOCKS]>,
}

impl Default for ReadHistory {
    fn default() -> Self {
        Self { locks: Arc::new(std::array::from_fn(|_| Semaphore::new(1))) }
    }
}

/// SHA-256 of a file's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Digest([u8; 32]);

impl Digest {
    pub(crate) fn of(contents: &[u8]) -> Self {
        Self(Sha256::digest(contents).into())
    }

    pub(crate) fn finish(hasher: Sha256) -> Self {
        Self(hasher.finalize().into())
    }

    fn hex(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// State of a file when it was read or written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct FileRecord {
    path: String,
    size: u64,
    modified_ns: Option<u64>,
    inode: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sha256: Option<String>,
}

/// Oldest first.
#[derive(Debug, Default, Serialize, Deserialize)]
struct History {
    files: Vec<FileRecord>,
}

impl ReadHistory {
    /// Records that the session has read or written a file. Errors are ignored, since the call itself
    /// succeeded: the file will have to be read again.
    pub(crate) async fn record(
        &self,
        session: SessionId,
        sandbox: &dyn Sandbox,
        path: &str,
        stat: &FileStat,
        digest: Option<Digest>,
    ) {
        let record = FileRecord::new(path, stat, digest);
        self.update(session, sandbox, |history| history.add(record)).await;
    }

    /// Records an upcoming write. A worker that dies between a write and its [`record`](Self::record) must
    /// not leave behind a file that its session may not change.
    pub(crate) async fn record_intent(
        &self,
        session: SessionId,
        sandbox: &dyn Sandbox,
        path: &str,
        digest: Digest,
    ) {
        let record = FileRecord {
            path: normalized(path),
            size: 0,
            modified_ns: None,
            inode: 0,
            sha256: Some(digest.hex()),
        };
        self.update(session, sandbox, |history| history.add_alternative(record)).await;
    }

    async fn update(
        &self,
        session: SessionId,
        sandbox: &dyn Sandbox,
        update: impl FnOnce(&mut History) -> bool,
    ) {
        let lock = session.as_uuid().as_u128() % LOCKS as u128;
        let Ok(_lock) = self.locks[usize::try_from(lock).unwrap_or_default()].acquire().await else { return };
        let file = state::path("read-history", session);
        let mut history: History = state::load(sandbox, &file).await.unwrap_or_default();
        if update(&mut history) {
            let _ignored = state::save(sandbox, &file, &history).await;
        }
    }

    /// Rejects a file that the session has not read, or that has changed since.
    pub(crate) async fn check(
        &self,
        session: SessionId,
        sandbox: &dyn Sandbox,
        path: &str,
        stat: &FileStat,
        digest: Option<Digest>,
    ) -> Result<()> {
        let history: Option<History> = state::load(sandbox, &state::path("read-history", session)).await;
        let now = FileRecord::new(path, stat, digest);
        match history.map_or(ReadState::NotRead, |history| history.state_of(&now)) {
            ReadState::Current => Ok(()),
            ReadState::Changed => {
                let message = format!("{} changed since it was read; read it again", display_safe(path));
                Err(Error::new(Code::FileChanged, message).at("path"))
            }
            ReadState::NotRead => {
                let message =
                    format!("{} exists and was not read in this session; read it first", display_safe(path));
                Err(Error::new(Code::ReadRequired, message).at("path"))
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadState {
    Current,
    Changed,
    NotRead,
}

impl History {
    /// Looks up a file by name, or else by inode: it may be recorded under another name.
    fn state_of(&self, now: &FileRecord) -> ReadState {
        let mut known = ReadState::NotRead;
        let same_name = |record: &&FileRecord| record.path == now.path;
        let any = self.files.iter().any(|record| same_name(&record));
        for record in
            self.files.iter().filter(|record| if any { same_name(record) } else { record.inode == now.inode })
        {
            if record.same_contents(now) {
                return ReadState::Current;
            }
            known = ReadState::Changed;
        }
        known
    }

    /// Replaces all records of the file. Returns whether the history changed.
    fn add(&mut self, record: FileRecord) -> bool {
        let mut same = self.files.iter().rev().take(MAX_FILES / 2).filter(|known| known.path == record.path);
        if same.next() == Some(&record) && same.next().is_none() {
            return false;
        }
        self.files.retain(|known| known.path != record.path);
        self.add_alternative(record)
    }

    /// Adds a record and keeps the existing ones of the file.
    fn add_alternative(&mut self, record: FileRecord) -> bool {
        self.files.push(record);
        let surplus = self.files.len().saturating_sub(MAX_FILES);
        self.files.drain(..surplus);
        true
    }
}

impl FileRecord {
    fn new(path: &str, stat: &FileStat, digest: Option<Digest>) -> Self {
        let since_epoch = stat.modified.and_then(|modified| modified.duration_since(UNIX_EPOCH).ok());
        Self {
            path: normalized(path),
            size: stat.size,
            modified_ns: since_epoch.and_then(|time| u64::try_from(time.as_nanos()).ok()),
            inode: stat.inode,
            sha256: digest.map(Digest::hex),
        }
    }

    fn same_contents(&self, now: &Self) -> bool {
        match (&self.sha256, &now.sha256) {
            (Some(before), Some(now)) => before == now,
            _ => (self.size, self.modified_ns, self.inode) == (now.size, now.modified_ns, now.inode),
        }
    }
}

/// Normalizes `a//b` and `./a/b`. Keeps `a/../b`, which is another file if `a` is a link.
fn normalized(path: &str) -> String {
    let parts = Path::new(path).components().filter(|part| *part != Component::CurDir);
    parts.collect::<std::path::PathBuf>().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(path: &str, size: u64) -> FileRecord {
        FileRecord { path: path.into(), size, modified_ns: Some(1), inode: 1, sha256: None }
    }

    #[test]
    fn equivalent_paths_are_normalized() {
        for path in ["a/b", "./a/b", "a//b", "a/./b/"] {
            assert_eq!(normalized(path), "a/b", "{path}");
        }
        assert_eq!(normalized("/w//a"), "/w/a");
        assert_eq!(normalized("a/../b"), "a/../b");
    }

    #[test]
    fn oldest_records_are_dropped() {
        let mut history = History::default();
        for number in 0..MAX_FILES + 10 {
            history.add(record(&number.to_string(), 1));
        }
        assert!(history.add(record("10", 2)));
        assert_eq!((history.files.len(), history.files[0].path.as_str()), (MAX_FILES, "11"));
        assert!(!history.add(record("10", 2)), "unchanged record");
        assert!(history.add(record("20", 1)), "old record is refreshed");
    }

    #[test]
    fn intended_write_counts_as_current() {
        let written = |text: &str| FileRecord {
            inode: 2,
            sha256: Some(Digest::of(text.as_bytes()).hex()),
            ..record("a", text.len() as u64)
        };
        let mut history = History::default();
        assert_eq!(history.state_of(&written("old")), ReadState::NotRead);
        history.add(written("old"));
        history.add_alternative(FileRecord { inode: 0, modified_ns: None, ..written("new") });
        assert_eq!(
            ["old", "new", "other"].map(|text| history.state_of(&written(text))),
            [ReadState::Current, ReadState::Current, ReadState::Changed]
        );
        let elsewhere = FileRecord { path: "b".into(), ..written("old") };
        assert_eq!(history.state_of(&elsewhere), ReadState::Current);
        history.add(written("new"));
        assert_eq!(history.state_of(&written("old")), ReadState::Changed);
    }

    #[test]
    fn digests_take_precedence_over_times() {
        let digest = |text: &str| Some(Digest::of(text.as_bytes()).hex());
        let read = FileRecord { sha256: digest("x"), ..record("a", 1) };
        assert!(read.same_contents(&FileRecord { modified_ns: Some(2), inode: 2, ..read.clone() }));
        assert!(!read.same_contents(&FileRecord { sha256: digest("y"), ..read.clone() }));
        assert!(read.same_contents(&FileRecord { sha256: None, ..read.clone() }));
        assert!(!read.same_contents(&FileRecord { sha256: None, modified_ns: Some(2), ..read.clone() }));
    }
}
