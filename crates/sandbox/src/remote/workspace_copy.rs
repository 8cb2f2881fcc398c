//! Synchronizes a workspace with its copy in an instance.
//!
//! A process in the instance (the *file copier*) lists, sends and receives files. Before a command, changes
//! on the host since the last transfer are pushed; after it, changes in the instance are pulled. If both
//! sides changed a file, the command's version is later and wins.

mod copier_client;

use std::{collections::BTreeMap, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use remuda_domain::error::{Code, Error, Result};
use remuda_supervisor::{Entry, EntryKind, ToCopier, is_inner_link, is_plain_path};
use tokio::{sync::Semaphore, time::timeout};

use self::copier_client::CopierClient;
use super::connection::InstanceConnection;
use crate::files::{HostFiles, WorkspaceEntries};

/// Timeout of one transfer. A gigabyte takes seconds.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(300);
/// Bytes that are sent before waiting for an acknowledgement.
const WINDOW: u64 = 1024 * 1024;
/// Files that are requested at once.
const BATCH: usize = 256;

/// The workspace copy of one instance.
#[derive(Debug)]
pub(super) struct WorkspaceCopy {
    /// Held during a transfer.
    exclusive: Semaphore,
    state: Mutex<State>,
    /// Path of the copy in the instance.
    path: String,
    max_bytes: u64,
}

#[derive(Debug, Default)]
struct State {
    copier: Option<CopierClient>,
    synced: SyncedEntries,
}

/// Entries on both sides at the last synchronization, by path: (host, instance).
type SyncedEntries = BTreeMap<Vec<u8>, (Entry, Entry)>;

impl WorkspaceCopy {
    pub(super) fn new(path: String, max_bytes: u64) -> Self {
        Self { exclusive: Semaphore::new(1), state: Mutex::default(), path, max_bytes }
    }

    /// Starts the file copier in advance, so that the first command does not wait for it.
    pub(super) async fn prepare(&self, connection: &InstanceConnection) -> Result<()> {
        let mut copier = CopierClient::start(connection, &self.path).await?;
        copier.send(ToCopier::List).await?;
        copier.entries().await?;
        self.lock().copier = Some(copier);
        Ok(())
    }

    /// Copies changes on the host into the instance.
    pub(super) async fn push(&self, connection: &InstanceConnection, files: &HostFiles) -> Result<()> {
        self.transfer(Direction::Push, connection, files).await
    }

    /// Copies changes in the instance back to the host.
    pub(super) async fn pull(&self, connection: &InstanceConnection, files: &HostFiles) -> Result<()> {
        self.transfer(Direction::Pull, connection, files).await.map_err(|error| {
            let message = format!("the command ran, but what it changed cannot be copied back: {error}");
            Error::new(error.code(), message).with_source(error)
        })
    }

    async fn transfer(
        &self,
        direction: Direction,
        connection: &InstanceConnection,
        files: &HostFiles,
    ) -> Result<()> {
        let mut work = self.begin(connection, files).await?;
        let mut transferred = with_timeout(work.transfer(direction)).await;
        if transferred.is_err() && work.copier.was_killed() && connection.alive() {
            // A command killed the copier: a new one repeats what was not finished.
            work.copier = CopierClient::start(connection, &self.path).await?;
            transferred = with_timeout(work.transfer(direction)).await;
        }
        self.end(work, connection, transferred.is_ok());
        transferred
    }

    async fn begin<'a>(
        &'a self,
        connection: &InstanceConnection,
        files: &'a HostFiles,
    ) -> Result<Transfer<'a>> {
        let permit = timeout(TRANSFER_TIMEOUT, self.exclusive.acquire()).await.ok().and_then(Result::ok);
        let permit = permit.ok_or_else(|| Error::unavailable("the workspace is still being copied"))?;
        let State { copier, synced } = std::mem::take(&mut *self.lock());
        let copier = match copier.filter(CopierClient::alive) {
            Some(copier) => copier,
            None => CopierClient::start(connection, &self.path).await?,
        };
        Ok(Transfer { copier, synced, files, max_bytes: self.max_bytes, _permit: permit })
    }

    /// Stores the state of a successful transfer. After a failure, or if this is never reached, the state is
    /// unknown and everything is compared anew.
    fn end(&self, work: Transfer<'_>, connection: &InstanceConnection, succeeded: bool) {
        let Transfer { copier, synced, _permit, .. } = work;
        if succeeded && connection.alive() {
            *self.lock() = State { copier: Some(copier), synced };
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

async fn with_timeout(work: impl Future<Output = Result<()>>) -> Result<()> {
    let late = || Err(Error::unavailable("copying the workspace takes too long"));
    timeout(TRANSFER_TIMEOUT, work).await.unwrap_or_else(|_| late())
}

struct Transfer<'a> {
    copier: CopierClient,
    synced: SyncedEntries,
    files: &'a HostFiles,
    max_bytes: u64,
    _permit: tokio::sync::SemaphorePermit<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Direction {
    Push,
    Pull,
}

impl Transfer<'_> {
    async fn transfer(&mut self, direction: Direction) -> Result<()> {
        match direction {
            Direction::Push => self.push().await,
            Direction::Pull => self.pull().await,
        }
    }

    async fn push(&mut self) -> Result<()> {
        let here = self.files.list_entries(self.max_bytes).await?;
        let removed = removed(&self.synced, |path| here.get(path));
        for path in &removed {
            self.copier.send(ToCopier::Remove(path.clone())).await?;
            self.synced.remove(path);
        }
        let changed: Vec<_> = here
            .into_values()
            .filter(|entry| self.synced.get(&entry.path).is_none_or(|(old, _)| !old.same_contents(entry)))
            .collect();
        if removed.is_empty() && changed.is_empty() {
            return Ok(());
        }
        let mut unacknowledged = Vec::new();
        let mut sent = 0;
        for entry in changed {
            let entry = match entry.kind {
                EntryKind::File => match self.files.open_for_transfer(&entry.path).await {
                    Ok((entry, file)) => {
                        sent += self.copier.put_file(&entry, file).await?;
                        entry
                    }
                    // Removed in the meantime; the next transfer sees that.
                    Err(error) if error.code() == Code::FileNotFound => continue,
                    Err(error) => return Err(error),
                },
                EntryKind::Directory | EntryKind::Link => {
                    self.copier.send(ToCopier::Put(entry.clone())).await?;
                    entry
                }
            };
            unacknowledged.push(entry);
            sent += 256;
            if sent >= WINDOW {
                self.await_stored(&mut unacknowledged).await?;
                sent = 0;
            }
        }
        self.await_stored(&mut unacknowledged).await
    }

    /// Waits until all sent entries are stored, and records them as synchronized.
    async fn await_stored(&mut self, unacknowledged: &mut Vec<Entry>) -> Result<()> {
        self.copier.send(ToCopier::Done).await?;
        let there = self.copier.entries().await?;
        for (here, there) in unacknowledged.drain(..).zip(there) {
            if here.path != there.path {
                return Err(self.copier.protocol_error());
            }
            self.synced.insert(here.path.clone(), (here, there));
        }
        Ok(())
    }

    async fn pull(&mut self) -> Result<()> {
        self.copier.send(ToCopier::List).await?;
        let there: WorkspaceEntries =
            self.copier.entries().await?.into_iter().filter(is_harmless).map(by_path).collect();
        let removed = removed(&self.synced, |path| there.get(path));
        for path in &removed {
            self.synced.remove(path);
        }
        self.files.remove_entries(removed).await?;
        let changed = there
            .into_values()
            .filter(|entry| self.synced.get(&entry.path).is_none_or(|(_, old)| !old.same_contents(entry)));
        // Directories first, in order.
        let (files, others): (Vec<_>, Vec<_>) = changed.partition(|entry| entry.kind == EntryKind::File);
        let (directories, links): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|entry| entry.kind == EntryKind::Directory);
        for entry in directories.into_iter().chain(links) {
            let here = self.files.create_entry(entry.clone()).await?;
            self.synced.insert(entry.path.clone(), (here, entry));
        }
        let mut left = self.max_bytes;
        for batch in files.chunks(BATCH) {
            self.pull_files(batch, &mut left).await?;
        }
        Ok(())
    }

    async fn pull_files(&mut self, batch: &[Entry], left: &mut u64) -> Result<()> {
        for entry in batch {
            self.copier.send(ToCopier::Get(entry.path.clone())).await?;
        }
        self.copier.send(ToCopier::Done).await?;
        for entry in batch {
            let Some(now) = self.copier.file(&entry.path).await? else { continue };
            let mut incoming = self.files.begin_file(&entry.path).await?;
            // Not in a blocking task: a chunk is small and goes to the page cache.
            while let Some(bytes) = self.copier.contents().await? {
                *left = left.checked_sub(bytes.len() as u64).ok_or_else(too_large)?;
                incoming.write(&bytes)?;
            }
            let here = self.files.finish_file(incoming, now).await?;
            // Recorded as it was listed: if it changed since, the next transfer sees a difference.
            self.synced.insert(entry.path.clone(), (here, entry.clone()));
        }
        self.copier.expect_done().await
    }
}

/// Paths that are gone or changed their kind. The contents of a directory come before the directory.
fn removed<'a>(synced: &SyncedEntries, now: impl Fn(&[u8]) -> Option<&'a Entry>) -> Vec<Vec<u8>> {
    let lost = |(path, (here, _)): (&Vec<u8>, &(Entry, Entry))| {
        now(path).is_none_or(|entry| entry.kind != here.kind).then(|| path.clone())
    };
    let mut removed: Vec<_> = synced.iter().filter_map(lost).collect();
    removed.reverse();
    removed
}

/// Whether an entry from an instance can be created on the host without danger.
fn is_harmless(entry: &Entry) -> bool {
    is_plain_path(&entry.path) && (entry.kind != EntryKind::Link || is_inner_link(&entry.path, &entry.target))
}

fn by_path(entry: Entry) -> (Vec<u8>, Entry) {
    (entry.path.clone(), entry)
}

fn too_large() -> Error {
    Error::new(Code::TooLarge, "the command changed more than the workspace may hold").at("workspace")
}
