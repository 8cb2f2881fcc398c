//! Watches the free space of a workspace while a command runs.
//!
//! A workspace on a disk has no quota, so a command could fill the disk for everything else on it. What it writes
//! within one interval is not prevented.

use std::{fmt, future::Future, pin::Pin, time::Duration};

use remuda_domain::error::Result;
use tokio::time::{Instant, sleep_until};

use crate::files::HostFiles;

const INTERVAL: Duration = Duration::from_millis(500);
/// Smaller changes are not the command's: logs and databases grow, too.
const SLACK: u64 = 1 << 20;

type Check = Pin<Box<dyn Future<Output = Result<u64>> + Send>>;

pub(crate) struct DiskWatch<'a> {
    files: &'a HostFiles,
    /// Free bytes that commands must leave.
    reserve: u64,
    /// Free bytes at the first check.
    before: Option<u64>,
    next: Instant,
    /// A slow file system may take longer than this future is polled.
    check: Option<Check>,
}

impl<'a> DiskWatch<'a> {
    pub(crate) fn new(files: &'a HostFiles, reserve: u64) -> Self {
        Self { files, reserve, before: None, next: Instant::now(), check: None }
    }

    /// Waits until less than the reserve is free, and less than when the watch began: commands that free space may
    /// run on a full disk. Cancel-safe.
    pub(crate) async fn exhausted(&mut self) {
        if self.reserve == 0 {
            return std::future::pending().await;
        }
        loop {
            if self.check.is_none() {
                sleep_until(self.next).await;
                self.next = Instant::now() + INTERVAL;
            }
            let check = self.check.get_or_insert_with(|| Box::pin(self.files.free_bytes()));
            let found = check.await;
            self.check = None;
            // Unknown for a workspace that was removed.
            let Ok(free) = found else { continue };
            let before = *self.before.get_or_insert(free);
            if free < self.reserve && free.saturating_add(SLACK) < before {
                return;
            }
        }
    }
}

impl fmt::Debug for DiskWatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskWatch").field("reserve", &self.reserve).finish_non_exhaustive()
    }
}
