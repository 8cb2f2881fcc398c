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
        self.change(session, sandbox, |history| history.add(seen)).await;
    }

    /// Remembers what is about to be written. A worker that dies between a write and its [`note`](Self::note) must not
    /// leave behind a file that its session does not know.
    pub(crate) async fn intend(&self, session: SessionId, sandbox: &dyn Sandbox, path: &str, digest: Digest) {
        let seen =
            Seen { path: plain(path), size: 0, modified_ns: None, inode: 0, sha256: Some(digest.hex()) };
        self.change(session, sandbox, |history| history.add_beside(seen)).await;
    }

    async fn change(
        &self,
        session: SessionId,
        sandbox: &dyn Sandbox,
        change: impl FnOnce(&mut History) -> bool,
    ) {
        let turn = session.as_uuid().as_u128() % TURNS as u128;
        let Ok(_turn) = self.turns[usize::try_from(turn).unwrap_or_default()].acquire().await else { return };
        let file = state::path("read-history", session);
        let mut history: History = state::load(sandbox, &file).await.unwrap_or_default();
        if change(&mut history) {
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
        match history.map_or(Known::No, |history| history.knows(&now)) {
            Known::AsItIs => Ok(()),
            Known::Otherwise => {
                let message = format!("{} changed since it was read; read it again", shown(path));
                Err(Error::new(Code::FileChanged, message).at("path"))
            }
            Known::No => {
                let message =
                    format!("{} exists and was not read in this session; read it first", shown(path));
                Err(Error::new(Code::ReadRequired, message).at("path"))
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    AsItIs,
    Otherwise,
    No,
}

impl History {
    /// By name, or else by what the file is: it may be known under another name.
    fn knows(&self, now: &Seen) -> Known {
        let mut known = Known::No;
        let same_name = |seen: &&Seen| seen.path == now.path;
        let any = self.files.iter().any(|seen| same_name(&seen));
        for seen in
            self.files.iter().filter(|seen| if any { same_name(seen) } else { seen.inode == now.inode })
        {
            if seen.holds_the_same_as(now) {
                return Known::AsItIs;
            }
            known = Known::Otherwise;
        }
        known
    }

    /// Adds what takes the place of all that was known of the file, and says whether that is news.
    fn add(&mut self, seen: Seen) -> bool {
        let mut same = self.files.iter().rev().take(MAX_FILES / 2).filter(|known| known.path == seen.path);
        if same.next() == Some(&seen) && same.next().is_none() {
            return false;
        }
        self.files.retain(|known| known.path != seen.path);
        self.add_beside(seen)
    }

    /// Adds what may be true of the file as well.
    fn add_beside(&mut self, seen: Seen) -> bool {
        self.files.push(seen);
        let surplus = self.files.len().saturating_sub(MAX_FILES);
        self.files.drain(..surplus);
        true
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
        assert!(history.add(seen("10", 2)));
        assert_eq!((history.files.len(), history.files[0].path.as_str()), (MAX_FILES, "11"));
        assert!(!history.add(seen("10", 2)), "nothing new");
        assert!(history.add(seen("20", 1)), "known, but soon forgotten");
    }

    #[test]
    fn a_write_that_may_have_happened_is_known() {
        let written = |text: &str| Seen {
            inode: 2,
            sha256: Some(Digest::of(text.as_bytes()).hex()),
            ..seen("a", text.len() as u64)
        };
        let mut history = History::default();
        assert_eq!(history.knows(&written("old")), Known::No);
        history.add(written("old"));
        history.add_beside(Seen { inode: 0, modified_ns: None, ..written("new") });
        assert_eq!(
            ["old", "new", "other"].map(|text| history.knows(&written(text))),
            [Known::AsItIs, Known::AsItIs, Known::Otherwise]
        );
        let elsewhere = Seen { path: "b".into(), ..written("old") };
        assert_eq!(history.knows(&elsewhere), Known::AsItIs);
        history.add(written("new"));
        assert_eq!(history.knows(&written("old")), Known::Otherwise);
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
