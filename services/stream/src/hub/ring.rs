//! What happened last in a session, for readers that take it at their own pace.

use std::collections::VecDeque;

/// Items, and bytes, that may wait for the slowest reader. One item is kept whatever its size.
pub(super) const MAX_ITEMS: usize = 256;
pub(super) const MAX_BYTES: usize = 512 * 1024;

/// A bounded queue with many readers. An item stays until all who were there when it came have taken it, or until it is pushed out:
/// a reader that is too slow for that has missed something, and is told so. Nobody waits for anybody.
pub(super) struct Ring<T> {
    items: VecDeque<Slot<T>>,
    /// The place of the first item.
    first: usize,
    bytes: usize,
    readers: usize,
}

struct Slot<T> {
    item: T,
    size: usize,
    /// How many readers are still to take it.
    awaited: usize,
}

impl<T: Clone> Ring<T> {
    pub(super) const fn new() -> Self {
        Self { items: VecDeque::new(), first: 0, bytes: 0, readers: 0 }
    }

    pub(super) const fn has_readers(&self) -> bool {
        self.readers > 0
    }

    /// A new reader's place: it takes what comes from now on.
    pub(super) fn join(&mut self) -> usize {
        self.readers += 1;
        self.first + self.items.len()
    }

    pub(super) fn leave(&mut self, place: usize) {
        self.readers -= 1;
        let start = place.saturating_sub(self.first).min(self.items.len());
        self.items.range_mut(start..).for_each(|slot| slot.awaited -= 1);
        self.release();
    }

    pub(super) fn push(&mut self, item: T, size: usize) {
        if self.readers == 0 {
            return;
        }
        self.items.push_back(Slot { item, size, awaited: self.readers });
        self.bytes += size;
        while self.items.len() > MAX_ITEMS || (self.bytes > MAX_BYTES && self.items.len() > 1) {
            self.drop_first();
        }
    }

    /// Everything after a reader's place, which moves on; nothing if it has missed something.
    pub(super) fn take(&mut self, place: &mut usize) -> Option<Vec<T>> {
        let start = place.checked_sub(self.first)?;
        let take = |slot: &mut Slot<T>| {
            slot.awaited -= 1;
            slot.item.clone()
        };
        let taken = self.items.range_mut(start..).map(take).collect();
        *place = self.first + self.items.len();
        self.release();
        Some(taken)
    }

    fn release(&mut self) {
        while self.items.front().is_some_and(|slot| slot.awaited == 0) {
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        if let Some(slot) = self.items.pop_front() {
            self.bytes -= slot.size;
            self.first += 1;
        }
    }

    #[cfg(test)]
    fn kept(&self) -> (usize, usize) {
        (self.items.len(), self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reader_takes_everything_once_and_nothing_stays() {
        let mut ring = Ring::new();
        ring.push("nobody hears it", 1);
        let (mut one, mut two) = (ring.join(), ring.join());
        ring.push("a", 1);
        ring.push("b", 1);
        assert_eq!(ring.take(&mut one), Some(vec!["a", "b"]));
        assert_eq!(ring.take(&mut one), Some(vec![]));
        let late = ring.join();
        ring.push("c", 1);
        assert_eq!(ring.take(&mut two), Some(vec!["a", "b", "c"]));
        assert_eq!(ring.kept(), (1, 1), "two have not taken the last one");
        ring.leave(late);
        assert_eq!(ring.take(&mut one), Some(vec!["c"]));
        assert_eq!(ring.kept(), (0, 0));
        ring.leave(one);
        ring.leave(two);
        assert!(!ring.has_readers());
    }

    #[test]
    fn a_slow_reader_is_told_that_it_missed_something() {
        let mut ring = Ring::new();
        let (mut slow, mut quick) = (ring.join(), ring.join());
        for number in 0..=MAX_ITEMS {
            ring.push(number, 1);
            assert_eq!(ring.take(&mut quick), Some(vec![number]));
        }
        assert_eq!(ring.kept(), (MAX_ITEMS, MAX_ITEMS));
        assert_eq!(ring.take(&mut slow), None);
        ring.leave(slow);
        assert_eq!(ring.kept(), (0, 0), "what it left is nobody's");
        let mut again = ring.join();
        ring.push(7, 1);
        assert_eq!(ring.take(&mut again), Some(vec![7]));
    }

    #[test]
    fn large_items_push_out_the_ones_before() {
        let mut ring = Ring::new();
        let mut reader = ring.join();
        ring.push("first", 1);
        ring.push("large", MAX_BYTES + 1);
        assert_eq!(ring.kept(), (1, MAX_BYTES + 1));
        assert_eq!(ring.take(&mut reader), None);
        ring.leave(reader);
        let mut reader = ring.join();
        ring.push("large", MAX_BYTES + 1);
        assert_eq!(ring.take(&mut reader), Some(vec!["large"]));
    }
}
