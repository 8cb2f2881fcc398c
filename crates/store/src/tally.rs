//! What happened through this store and is not written down yet.

use std::sync::Mutex;

use crate::Counts;

/// Counts of this process since they were last taken. Adding is a few instructions under a lock that nobody holds for longer.
#[derive(Debug, Default)]
pub(crate) struct Tally(Mutex<Counts>);

impl Tally {
    pub(crate) fn add(&self, counts: Counts) {
        if counts != Counts::default() {
            let mut all = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            *all = *all + counts;
        }
    }

    /// Takes what there is. Whoever cannot write it down gives it back with [`Tally::add`].
    pub(crate) fn take(&self) -> Counts {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_taken_once() {
        let tally = Tally::default();
        let one = Counts { submitted: 1, completed: 2, ..Counts::default() };
        tally.add(one);
        tally.add(one);
        assert_eq!(tally.take(), one + one);
        assert_eq!(tally.take(), Counts::default());
    }
}
