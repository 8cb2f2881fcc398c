//! A bounded ring of recent items that readers take at their own pace.

use std::collections::VecDeque;

/// Items and bytes that may wait for the slowest reader. One item is kept whatever its size.
pub(super) const MAX_ITEMS: usize = 256;
pub(super) const MAX_BYTES: usize = 512 * 1024;

/// A bounded queue with many readers. An item stays until all readers present at its push have taken it, or until it
/// is pushed out. A reader that was too slow learns that it missed items. Neither readers nor the writer ever block.
pub(super) struct Ring<T> {
    items: VecDeque<Entry<T>>,
    /// The position of the first item.
    first: usize,
    bytes: usize,
    readers: usize,
}

struct Entry<T> {
    item: T,
    size: usize,
    /// Number of readers that have not taken it.
    pending_readers: usize,
}

impl<T: Clone> Ring<T> {
    pub(super) const fn new() -> Self {
        Self { items: VecDeque::new(), first: 0, bytes: 0, readers: 0 }
    }

    pub(super) const fn has_readers(&self) -> bool {
        self.readers > 0
    }

    /// Adds a reader at the end: it takes items pushed from now on.
    pub(super) fn join(&mut self) -> usize {
        self.readers += 1;
        self.first + self.items.len()
    }

    pub(super) fn leave(&mut self, position: usize) {
        self.readers -= 1;
        let start = position.saturating_sub(self.first).min(self.items.len());
        self.items.range_mut(start..).for_each(|entry| entry.pending_readers -= 1);
        self.release();
    }

    pub(super) fn push(&mut self, item: T, size: usize) {
        if self.readers == 0 {
            return;
        }
        self.items.push_back(Entry { item, size, pending_readers: self.readers });
        self.bytes += size;
        while self.items.len() > MAX_ITEMS || (self.bytes > MAX_BYTES && self.items.len() > 1) {
            self.drop_first();
        }
    }

    /// All items after a reader's position, which moves to the end. `None` if the reader missed items.
    pub(super) fn take(&mut self, position: &mut usize) -> Option<Vec<T>> {
        let start = position.checked_sub(self.first)?;
        let take = |entry: &mut Entry<T>| {
            entry.pending_readers -= 1;
            entry.item.clone()
        };
        let taken = self.items.range_mut(start..).map(take).collect();
        *position = self.first + self.items.len();
        self.release();
        Some(taken)
    }

    fn release(&mut self) {
        while self.items.front().is_some_and(|entry| entry.pending_readers == 0) {
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        if let Some(entry) = self.items.pop_front() {
            self.bytes -= entry.size;
            self.first += 1;
        }
    }

    #[cfg(test)]
    fn retained(&self) -> (usize, usize) {
        (self.items.len(), self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reader_takes_each_item_once_and_taken_items_are_dropped() {
        let mut ring = Ring::new();
        ring.push("no reader yet", 1);
        let (mut one, mut two) = (ring.join(), ring.join());
        ring.push("a", 1);
        ring.push("b", 1);
        assert_eq!(ring.take(&mut one), Some(vec!["a", "b"]));
        assert_eq!(ring.take(&mut one), Some(vec![]));
        let late = ring.join();
        ring.push("c", 1);
        assert_eq!(ring.take(&mut two), Some(vec!["a", "b", "c"]));
        assert_eq!(ring.retained(), (1, 1), "two readers have not taken the last item");
        ring.leave(late);
        assert_eq!(ring.take(&mut one), Some(vec!["c"]));
        assert_eq!(ring.retained(), (0, 0));
        ring.leave(one);
        ring.leave(two);
        assert!(!ring.has_readers());
    }

    #[test]
    fn slow_reader_learns_that_it_missed_items() {
        let mut ring = Ring::new();
        let (mut slow, mut quick) = (ring.join(), ring.join());
        for number in 0..=MAX_ITEMS {
            ring.push(number, 1);
            assert_eq!(ring.take(&mut quick), Some(vec![number]));
        }
        assert_eq!(ring.retained(), (MAX_ITEMS, MAX_ITEMS));
        assert_eq!(ring.take(&mut slow), None);
        ring.leave(slow);
        assert_eq!(ring.retained(), (0, 0), "items of a reader that left are dropped");
        let mut again = ring.join();
        ring.push(7, 1);
        assert_eq!(ring.take(&mut again), Some(vec![7]));
    }

    #[test]
    fn large_item_pushes_out_earlier_ones() {
        let mut ring = Ring::new();
        let mut reader = ring.join();
        ring.push("first", 1);
        ring.push("large", MAX_BYTES + 1);
        assert_eq!(ring.retained(), (1, MAX_BYTES + 1));
        assert_eq!(ring.take(&mut reader), None);
        ring.leave(reader);
        let mut reader = ring.join();
        ring.push("large", MAX_BYTES + 1);
        assert_eq!(ring.take(&mut reader), Some(vec!["large"]));
    }
}
