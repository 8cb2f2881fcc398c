//! Limits of a file search: entries, time and cancellation.

use std::{
    cell::Cell,
    fs::File,
    io::{self, Read},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// Directory entries that one search may read.
const MAX_ENTRIES: usize = 200_000;
const MAX_TIME: Duration = Duration::from_secs(30);

/// Remaining budget of one search.
#[derive(Debug)]
pub(super) struct SearchLimits {
    /// The caller has dropped the search.
    dropped: Arc<AtomicBool>,
    deadline: Instant,
    entries: Cell<usize>,
    reached: Cell<bool>,
}

impl SearchLimits {
    /// The search stops soon after the second value is dropped.
    pub(super) fn new() -> (Self, CancelOnDrop) {
        let dropped = Arc::new(AtomicBool::new(false));
        let limits = Self {
            dropped: Arc::clone(&dropped),
            deadline: Instant::now() + MAX_TIME,
            entries: Cell::new(MAX_ENTRIES),
            reached: Cell::new(false),
        };
        (limits, CancelOnDrop(dropped))
    }

    /// Whether the search may continue.
    pub(super) fn may_continue(&self) -> bool {
        let may_continue = !self.dropped.load(Ordering::Relaxed) && Instant::now() < self.deadline;
        if !may_continue {
            self.mark_reached();
        }
        may_continue
    }

    /// Counts one directory entry. False if none is left.
    pub(super) fn take_entry(&self) -> bool {
        let left = self.entries.get();
        self.entries.set(left.saturating_sub(1));
        if left == 0 {
            self.mark_reached();
        }
        left > 0
    }

    /// Records that results were omitted.
    pub(super) fn mark_reached(&self) {
        self.reached.set(true);
    }

    pub(super) fn reached(&self) -> bool {
        self.reached.get()
    }
}

/// Held by the caller; dropping it cancels the search.
#[derive(Debug)]
pub(super) struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A reader that fails once the search must stop.
#[derive(Debug)]
pub(super) struct BoundedReader<'a> {
    pub(super) file: File,
    pub(super) limits: &'a SearchLimits,
}

impl Read for BoundedReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if !self.limits.may_continue() {
            return Err(io::Error::other("the search ran out of time"));
        }
        self.file.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_stops_when_the_caller_drops_it() {
        let (limits, waiting) = SearchLimits::new();
        assert!(limits.may_continue() && !limits.reached());
        drop(waiting);
        assert!(!limits.may_continue() && limits.reached());
        let mut text = String::new();
        let file = File::open("/proc/self/status").unwrap();
        assert!(BoundedReader { file, limits: &limits }.read_to_string(&mut text).is_err());
    }

    #[test]
    fn search_stops_reading_entries_at_the_limit() {
        let (limits, _waiting) = SearchLimits::new();
        for _ in 0..MAX_ENTRIES {
            assert!(limits.take_entry());
        }
        assert!(!limits.take_entry() && limits.reached());
        assert!(limits.may_continue(), "entries read so far are still searched");
    }
}
