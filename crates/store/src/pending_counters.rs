//! Run and spending counters of this process that are not yet added to the database.

use crate::Counts;
use parking_lot::Mutex;

/// Counters since the last [`take`](PendingCounters::take). The lock is held for a few instructions only.
#[derive(Debug, Default)]
pub(crate) struct PendingCounters(Mutex<Counts>);

impl PendingCounters {
    pub(crate) fn add(&self, counts: Counts) {
        if counts != Counts::default() {
            let mut all = self.0.lock();
            *all = *all + counts;
        }
    }

    /// Takes the pending counts. If writing them fails, the caller returns them with [`PendingCounters::add`].
    pub(crate) fn take(&self) -> Counts {
        std::mem::take(&mut *self.0.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn take_returns_the_sum_once() {
        let counters = PendingCounters::default();
        let one = Counts { submitted: 1, completed: 2, ..Counts::default() };
        counters.add(one);
        counters.add(one);
        assert_eq!(counters.take(), one + one);
        assert_eq!(counters.take(), Counts::default());
    }
}
