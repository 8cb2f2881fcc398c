//! A scan over many runs that covers a bounded number of them in each round.

use remuda_domain::RunId;

/// The position of a task that scans runs in the order of their ids. The next round continues where the last one ended,
/// so a round costs at most [`PagedScan::PAGE`] times [`PagedScan::PAGES`] runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct PagedScan {
    /// Runs per page.
    pub(super) page: u32,
    /// Pages per round.
    pub(super) pages: u32,
    /// The last run of the previous page. `None` at the beginning.
    pub(super) after: Option<RunId>,
}

impl PagedScan {
    const PAGE: u32 = 500;
    const PAGES: u32 = 10;
}

impl Default for PagedScan {
    fn default() -> Self {
        Self { page: Self::PAGE, pages: Self::PAGES, after: None }
    }
}
