//! Going through many things, a bounded number in each round.

use remuda_domain::RunId;

/// How far a task has come on its way through runs in the order of their ids. The next round goes on where the last one ended, so
/// however many there are, a round costs no more than [`Walk::PAGE`] times [`Walk::PAGES`] of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk {
    /// Runs that are looked at together.
    pub(super) page: u32,
    /// Pages of one round.
    pub(super) pages: u32,
    /// The last one that was looked at. Nothing at the beginning.
    pub(super) after: Option<RunId>,
}

impl Walk {
    const PAGE: u32 = 500;
    const PAGES: u32 = 10;
}

impl Default for Walk {
    fn default() -> Self {
        Self { page: Self::PAGE, pages: Self::PAGES, after: None }
    }
}
