//! How many tokens the server may still send us.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

/// How late the server's word that a request has expired may be.
const GRACE: Duration = Duration::from_secs(2);

/// The pull requests that are open. Which of them a message answers cannot be seen and does not matter: the sum does.
#[derive(Debug, Default)]
pub(super) struct Demand {
    /// When each request expires and what is left of it, oldest first.
    requests: VecDeque<(Instant, usize)>,
}

impl Demand {
    pub(super) fn total(&self) -> usize {
        self.requests.iter().map(|(_, left)| left).sum()
    }

    pub(super) fn asked(&mut self, count: usize, expires: Instant) {
        self.requests.push_back((expires, count));
    }

    /// `count` fewer will come: they came, or their request expired.
    pub(super) fn settle(&mut self, mut count: usize) {
        while let Some((_, left)) = self.requests.front_mut() {
            let part = count.min(*left);
            *left -= part;
            count -= part;
            if *left > 0 {
                return;
            }
            self.requests.pop_front();
        }
    }

    /// A request is over; older servers do not say what was left of it.
    pub(super) fn settle_ended(&mut self, left: Option<usize>) {
        match left {
            Some(left) => self.settle(left),
            None => drop(self.requests.pop_front()),
        }
    }

    /// When the server should long have said something about the oldest request.
    pub(super) fn overdue_at(&self) -> Option<Instant> {
        self.requests.front().map(|(expires, _)| *expires + GRACE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_right_whichever_request_was_answered() {
        let now = Instant::now();
        let mut demand = Demand::default();
        demand.asked(4, now);
        demand.asked(1, now + GRACE);
        // The second request was answered, then the first expired with all four left.
        demand.settle(1);
        assert_eq!(demand.total(), 4);
        demand.settle(4);
        assert_eq!((demand.total(), demand.overdue_at()), (0, None));
        demand.settle(1);
        demand.asked(2, now);
        assert_eq!(demand.overdue_at(), Some(now + GRACE));
        demand.settle_ended(None);
        assert_eq!(demand.total(), 0);
    }
}
