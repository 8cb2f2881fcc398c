//! The copy of a workspace in a container, and keeping both alike.
//!
//! A process in there (the *porter*) lists, gives and takes files. Before a command, what changed on this side since the
//! last time goes in; after it, what changed on the other side comes back. Where both sides changed a file, the command's
//! is the later one and wins.

mod porter;

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use remuda_domain::error::{Code, Error, Result};
use remuda_supervisor::{Entry, EntryKind, ToPorter, is_inner_link, is_plain_path};
use tokio::{sync::Semaphore, time::timeout};

use self::porter::Porter;
use super::link::Link;
use crate::files::{HostFiles, Survey};

/// How long carrying may take. A gigabyte takes seconds.
const PATIENCE: Duration = Duration::from_secs(300);
/// What is sent before waiting for an answer.
const WINDOW: u64 = 1024 * 1024;
/// Files that are asked for at once.
const BATCH: usize = 256;

/// The copy of one container.
#[derive(Debug)]
pub(super) struct Copy {
    /// Held by whoever carries.
    gate: Semaphore,
    state: Mutex<State>,
    max_bytes: u64,
}

#[derive(Debug, Default)]
struct State {
    porter: Option<Porter>,
    seen: Seen,
}

/// What both sides had when they were alike: a path's entry over here and over there.
type Seen = BTreeMap<Vec<u8>, (Entry, Entry)>;

impl Copy {
    pub(super) fn new(max_bytes: u64) -> Self {
        Self { gate: Semaphore::new(1), state: Mutex::default(), max_bytes }
    }

    /// Starts the porter, so that it need not be started by the first command.
    pub(super) async fn prepare(&self, link: &Link) -> Result<()> {
        let mut porter = Porter::start(link).await?;
        porter.send(ToPorter::List).await?;
        porter.entries().await?;
        self.lock().porter = Some(porter);
        Ok(())
    }

    /// Brings in what changed on this side.
    pub(super) async fn push(&self, link: &Link, files: &HostFiles) -> Result<()> {
        self.carry(Way::In, link, files).await
    }

    /// Brings back what changed on the other side.
    pub(super) async fn pull(&self, link: &Link, files: &HostFiles) -> Result<()> {
        self.carry(Way::Back, link, files).await.map_err(|error| {
            let message = format!("the command ran, but what it changed cannot be copied back: {error}");
            Error::new(error.code(), message).with_source(error)
        })
    }

    async fn carry(&self, way: Way, link: &Link, files: &HostFiles) -> Result<()> {
        let mut work = self.begin(link, files).await?;
        let mut carried = bounded(work.carry(way)).await;
        if carried.is_err() && work.porter.was_killed() && link.alive() {
            // A command can do that: with another one everything is done again that was not finished.
            work.porter = Porter::start(link).await?;
            carried = bounded(work.carry(way)).await;
        }
        self.end(work, link, carried.is_ok());
        carried
    }

    async fn begin<'a>(&'a self, link: &Link, files: &'a HostFiles) -> Result<Work<'a>> {
        let turn = timeout(PATIENCE, self.gate.acquire()).await.ok().and_then(Result::ok);
        let turn = turn.ok_or_else(|| Error::unavailable("the workspace is still being copied"))?;
        let State { porter, seen } = std::mem::take(&mut *self.lock());
        let porter = match porter.filter(Porter::alive) {
            Some(porter) => porter,
            None => Porter::start(link).await?,
        };
        Ok(Work { porter, seen, files, max_bytes: self.max_bytes, _turn: turn })
    }

    /// After a failure, or if this is never reached, it is unknown what is alike: everything is compared anew.
    fn end(&self, work: Work<'_>, link: &Link, good: bool) {
        let Work { porter, seen, _turn, .. } = work;
        if good && link.alive() {
            *self.lock() = State { porter: Some(porter), seen };
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn bounded(work: impl Future<Output = Result<()>>) -> Result<()> {
    let late = || Err(Error::unavailable("copying the workspace takes too long"));
    timeout(PATIENCE, work).await.unwrap_or_else(|_| late())
}

struct Work<'a> {
    porter: Porter,
    seen: Seen,
    files: &'a HostFiles,
    max_bytes: u64,
    _turn: tokio::sync::SemaphorePermit<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Way {
    In,
    Back,
}

impl Work<'_> {
    async fn carry(&mut self, way: Way) -> Result<()> {
        match way {
            Way::In => self.push().await,
            Way::Back => self.pull().await,
        }
    }

    async fn push(&mut self) -> Result<()> {
        let here = self.files.survey(self.max_bytes).await?;
        let gone = gone(&self.seen, |path| here.get(path));
        for path in &gone {
            self.porter.send(ToPorter::Remove(path.clone())).await?;
            self.seen.remove(path);
        }
        let changed: Vec<_> = here
            .into_values()
            .filter(|entry| self.seen.get(&entry.path).is_none_or(|(old, _)| !old.same(entry)))
            .collect();
        if gone.is_empty() && changed.is_empty() {
            return Ok(());
        }
        let mut unanswered = Vec::new();
        let mut sent = 0;
        for entry in changed {
            let entry = match entry.kind {
                EntryKind::File => match self.files.open_carried(&entry.path).await {
                    Ok((entry, file)) => {
                        sent += self.porter.put_file(&entry, file).await?;
                        entry
                    }
                    // Removed meanwhile: it is not there the next time, either.
                    Err(error) if error.code() == Code::FileNotFound => continue,
                    Err(error) => return Err(error),
                },
                EntryKind::Directory | EntryKind::Link => {
                    self.porter.send(ToPorter::Put(entry.clone())).await?;
                    entry
                }
            };
            unanswered.push(entry);
            sent += 256;
            if sent >= WINDOW {
                self.settle(&mut unanswered).await?;
                sent = 0;
            }
        }
        self.settle(&mut unanswered).await
    }

    /// Waits until everything that was put is there, and remembers it as alike.
    async fn settle(&mut self, unanswered: &mut Vec<Entry>) -> Result<()> {
        self.porter.send(ToPorter::Done).await?;
        let there = self.porter.entries().await?;
        for (here, there) in unanswered.drain(..).zip(there) {
            if here.path != there.path {
                return Err(porter::confused());
            }
            self.seen.insert(here.path.clone(), (here, there));
        }
        Ok(())
    }

    async fn pull(&mut self) -> Result<()> {
        self.porter.send(ToPorter::List).await?;
        let there: Survey =
            self.porter.entries().await?.into_iter().filter(is_harmless).map(by_path).collect();
        let gone = gone(&self.seen, |path| there.get(path));
        for path in &gone {
            self.seen.remove(path);
        }
        self.files.discard(gone).await?;
        let changed = there
            .into_values()
            .filter(|entry| self.seen.get(&entry.path).is_none_or(|(_, old)| !old.same(entry)));
        // Directories first, in order; they are few.
        let (files, others): (Vec<_>, Vec<_>) = changed.partition(|entry| entry.kind == EntryKind::File);
        let (directories, links): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|entry| entry.kind == EntryKind::Directory);
        for entry in directories.into_iter().chain(links) {
            let here = self.files.place(entry.clone()).await?;
            self.seen.insert(entry.path.clone(), (here, entry));
        }
        let mut left = self.max_bytes;
        for batch in files.chunks(BATCH) {
            self.pull_files(batch, &mut left).await?;
        }
        Ok(())
    }

    async fn pull_files(&mut self, batch: &[Entry], left: &mut u64) -> Result<()> {
        for entry in batch {
            self.porter.send(ToPorter::Get(entry.path.clone())).await?;
        }
        self.porter.send(ToPorter::Done).await?;
        for entry in batch {
            let Some(now) = self.porter.file(&entry.path).await? else { continue };
            let mut incoming = self.files.begin_file(&entry.path).await?;
            // A piece is small, and the page cache takes it at once.
            while let Some(bytes) = self.porter.contents().await? {
                *left = left.checked_sub(bytes.len() as u64).ok_or_else(too_much)?;
                incoming.write(&bytes)?;
            }
            let here = self.files.finish_file(incoming, now).await?;
            // As it was listed: if it changed since, it differs the next time.
            self.seen.insert(entry.path.clone(), (here, entry.clone()));
        }
        self.porter.done().await
    }
}

/// What was there and is not any more, or as something else; what is in a directory comes before the directory.
fn gone<'a>(seen: &Seen, now: impl Fn(&[u8]) -> Option<&'a Entry>) -> Vec<Vec<u8>> {
    let lost = |(path, (here, _)): (&Vec<u8>, &(Entry, Entry))| {
        now(path).is_none_or(|entry| entry.kind != here.kind).then(|| path.clone())
    };
    let mut gone: Vec<_> = seen.iter().filter_map(lost).collect();
    gone.reverse();
    gone
}

/// What a command made is taken only if it can be put on this side without danger.
fn is_harmless(entry: &Entry) -> bool {
    is_plain_path(&entry.path) && (entry.kind != EntryKind::Link || is_inner_link(&entry.path, &entry.target))
}

fn by_path(entry: Entry) -> (Vec<u8>, Entry) {
    (entry.path.clone(), entry)
}

fn too_much() -> Error {
    Error::new(Code::TooLarge, "the command changed more than the workspace may hold").at("workspace")
}
