//! When a search has to stop.

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

/// Directory entries that one search looks at.
const MAX_ENTRIES: usize = 200_000;
const MAX_TIME: Duration = Duration::from_secs(30);

/// What is left of a search's means.
#[derive(Debug)]
pub(super) struct Bounds {
    /// Nobody waits for the answer any more.
    dropped: Arc<AtomicBool>,
    deadline: Instant,
    entries: Cell<usize>,
    reached: Cell<bool>,
}

impl Bounds {
    /// The search ends soon after the second value is dropped.
    pub(super) fn new() -> (Self, Waiting) {
        let dropped = Arc::new(AtomicBool::new(false));
        let bounds = Self {
            dropped: Arc::clone(&dropped),
            deadline: Instant::now() + MAX_TIME,
            entries: Cell::new(MAX_ENTRIES),
            reached: Cell::new(false),
        };
        (bounds, Waiting(dropped))
    }

    /// Whether there is time left.
    pub(super) fn go_on(&self) -> bool {
        let go_on = !self.dropped.load(Ordering::Relaxed) && Instant::now() < self.deadline;
        if !go_on {
            self.reach();
        }
        go_on
    }

    /// Takes one directory entry from what is left.
    pub(super) fn take_entry(&self) -> bool {
        let left = self.entries.get();
        self.entries.set(left.saturating_sub(1));
        if left == 0 {
            self.reach();
        }
        left > 0
    }

    /// Something was left out.
    pub(super) fn reach(&self) {
        self.reached.set(true);
    }

    pub(super) fn reached(&self) -> bool {
        self.reached.get()
    }
}

/// Someone waits for the answer.
#[derive(Debug)]
pub(super) struct Waiting(Arc<AtomicBool>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A file that can be read only as long as the search may go on.
#[derive(Debug)]
pub(super) struct Paced<'a> {
    pub(super) file: File,
    pub(super) bounds: &'a Bounds,
}

impl Read for Paced<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if !self.bounds.go_on() {
            return Err(io::Error::other("the search ran out of time"));
        }
        self.file.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_when_nobody_waits() {
        let (bounds, waiting) = Bounds::new();
        assert!(bounds.go_on() && !bounds.reached());
        drop(waiting);
        assert!(!bounds.go_on() && bounds.reached());
        let mut text = String::new();
        let file = File::open("/proc/self/status").unwrap();
        assert!(Paced { file, bounds: &bounds }.read_to_string(&mut text).is_err());
    }

    #[test]
    fn entries_run_out() {
        let (bounds, _waiting) = Bounds::new();
        for _ in 0..MAX_ENTRIES {
            assert!(bounds.take_entry());
        }
        assert!(!bounds.take_entry() && bounds.reached());
        assert!(bounds.go_on(), "what was seen so far is still looked at");
    }
}
