//! Which files a session has seen, and what they held then.
//!
//! `Write` and `Edit` change only what the session knows: a file that it read or wrote itself, and that is still as it
//! was. What counts is what the file holds; where that is not known, its size and time.

use std::{
    path::{Component, Path},
    sync::Arc,
    time::UNIX_EPOCH,
};

use remuda_domain::{
    SessionId,
    error::{Code, Error, Result},
};
use remuda_sandbox::{FileStat, Sandbox, path::shown};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;

use crate::state;

/// The longest unseen are forgotten.
const MAX_FILES: usize = 1000;
/// Sessions that share a turn wait for each other a little.
const TURNS: usize = 64;

/// Remembers, in the workspace, what sessions have seen. Clones share their turns.
#[derive(Clone, Debug)]
pub(crate) struct ReadHistory {
    /// One at a time changes a session's history: the calls of a run may be parallel.
    turns: Arc<[Semaphore; TURNS]>,
}

impl Default for ReadHistory {
    fn default() -> Self {
        Self { turns: Arc::new(std::array::from_fn(|_| Semaphore::new(1))) }
    }
}

/// The contents of a file, told apart from others.
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

/// A file as it was seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Seen {
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
    files: Vec<Seen>,
}

impl ReadHistory {
    /// Remembers that the session knows a file. Being unable to is no failure of the call, which has done its work: the
    /// file will have to be read again.
    pub(crate) async fn note(
        &self,
        session: SessionId,
        sandbox: &dyn Sandbox,
        path: &str,
        stat: &FileStat,
        digest: Option<Digest>,
    ) {
        let seen = Seen::new(path, stat, digest);
        let turn = session.as_uuid().as_u128() % TURNS as u128;
        let Ok(_turn) = self.turns[usize::try_from(turn).unwrap_or_default()].acquire().await else { return };
        let file = state::path("read-history", session);
        let mut history: History = state::load(sandbox, &file).await.unwrap_or_default();
        if !history.knows_well(&seen) {
            history.add(seen);
            let _unable = state::save(sandbox, &file, &history).await;
        }
    }

    /// Refuses a file that the session does not know, or not as it is now.
    pub(crate) async fn check(
        &self,
        session: SessionId,
        sandbox: &dyn Sandbox,
        path: &str,
        stat: &FileStat,
        digest: Option<Digest>,
    ) -> Result<()> {
        let history: Option<History> = state::load(sandbox, &state::path("read-history", session)).await;
        let now = Seen::new(path, stat, digest);
        match history.as_ref().and_then(|history| history.find(&now)) {
            None => {
                let message = format!("{} exists and was not read in this session; read it first", shown(path));
                Err(Error::new(Code::ReadRequired, message).at("path"))
            }
            Some(seen) if !seen.holds_the_same_as(&now) => {
                let message = format!("{} changed since it was read; read it again", shown(path));
                Err(Error::new(Code::FileChanged, message).at("path"))
            }
            Some(_) => Ok(()),
        }
    }
}

impl History {
    /// By name, or else by what the file is: it may be known under another name.
    fn find(&self, now: &Seen) -> Option<&Seen> {
        let same_name = self.files.iter().rev().find(|seen| seen.path == now.path);
        same_name.or_else(|| self.files.iter().rev().find(|seen| seen.inode == now.inode))
    }

    /// Nothing new, and not to be forgotten soon.
    fn knows_well(&self, seen: &Seen) -> bool {
        self.files.iter().rev().take(MAX_FILES / 2).any(|known| known == seen)
    }

    fn add(&mut self, seen: Seen) {
        self.files.retain(|known| known.path != seen.path);
        self.files.push(seen);
        let surplus = self.files.len().saturating_sub(MAX_FILES);
        self.files.drain(..surplus);
    }
}

impl Seen {
    fn new(path: &str, stat: &FileStat, digest: Option<Digest>) -> Self {
        let since_epoch = stat.modified.and_then(|modified| modified.duration_since(UNIX_EPOCH).ok());
        Self {
            path: plain(path),
            size: stat.size,
            modified_ns: since_epoch.and_then(|time| u64::try_from(time.as_nanos()).ok()),
            inode: stat.inode,
            sha256: digest.map(Digest::hex),
        }
    }

    fn holds_the_same_as(&self, now: &Self) -> bool {
        match (&self.sha256, &now.sha256) {
            (Some(before), Some(now)) => before == now,
            _ => (self.size, self.modified_ns, self.inode) == (now.size, now.modified_ns, now.inode),
        }
    }
}

/// The same text for `a//b` and `./a/b`. Not for `a/../b`, which is another file where `a` is a link.
fn plain(path: &str) -> String {
    let parts = Path::new(path).components().filter(|part| *part != Component::CurDir);
    parts.collect::<std::path::PathBuf>().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(path: &str, size: u64) -> Seen {
        Seen { path: path.into(), size, modified_ns: Some(1), inode: 1, sha256: None }
    }

    #[test]
    fn names_are_compared_as_plain_text() {
        for path in ["a/b", "./a/b", "a//b", "a/./b/"] {
            assert_eq!(plain(path), "a/b", "{path}");
        }
        assert_eq!(plain("/w//a"), "/w/a");
        assert_eq!(plain("a/../b"), "a/../b");
    }

    #[test]
    fn the_longest_unseen_are_forgotten() {
        let mut history = History::default();
        for number in 0..MAX_FILES + 10 {
            history.add(seen(&number.to_string(), 1));
        }
        history.add(seen("10", 2));
        assert_eq!((history.files.len(), history.files[0].path.as_str()), (MAX_FILES, "11"));
        assert!(history.knows_well(&seen("10", 2)) && !history.knows_well(&seen("10", 1)));
        assert!(!history.knows_well(&seen("20", 1)), "known, but soon forgotten");
    }

    #[test]
    fn contents_count_before_times() {
        let digest = |text: &str| Some(Digest::of(text.as_bytes()).hex());
        let read = Seen { sha256: digest("x"), ..seen("a", 1) };
        assert!(read.holds_the_same_as(&Seen { modified_ns: Some(2), inode: 2, ..read.clone() }));
        assert!(!read.holds_the_same_as(&Seen { sha256: digest("y"), ..read.clone() }));
        assert!(read.holds_the_same_as(&Seen { sha256: None, ..read.clone() }));
        assert!(!read.holds_the_same_as(&Seen { sha256: None, modified_ns: Some(2), ..read.clone() }));
    }
}
