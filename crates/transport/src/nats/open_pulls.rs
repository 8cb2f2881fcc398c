//! The open pull requests: how many tokens the server may still send.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

/// How late the server's notice of an expired request may be.
const GRACE: Duration = Duration::from_secs(2);

/// The open pull requests. It is unknown which of them a message responds to, and only the sum matters.
#[derive(Debug, Default)]
pub(super) struct OpenPulls {
    /// Expiry and remaining count of each request, oldest first.
    requests: VecDeque<(Instant, usize)>,
}

impl OpenPulls {
    pub(super) fn total(&self) -> usize {
        self.requests.iter().map(|(_, left)| left).sum()
    }

    pub(super) fn opened(&mut self, count: usize, expires: Instant) {
        self.requests.push_back((expires, count));
    }

    /// `count` fewer tokens will come: they arrived, or their request expired.
    pub(super) fn settle(&mut self, mut count: usize) {
        while let Some((_, left)) = self.requests.front_mut() {
            let settled = count.min(*left);
            *left -= settled;
            count -= settled;
            if *left > 0 {
                return;
            }
            self.requests.pop_front();
        }
    }

    /// A request has ended. Older servers do not report how many tokens remained.
    pub(super) fn settle_ended(&mut self, left: Option<usize>) {
        match left {
            Some(left) => self.settle(left),
            None => drop(self.requests.pop_front()),
        }
    }

    /// When the server should have responded to the oldest request at the latest.
    pub(super) fn overdue_at(&self) -> Option<Instant> {
        self.requests.front().map(|(expires, _)| *expires + GRACE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn total_is_right_whichever_request_a_message_belongs_to() {
        let now = Instant::now();
        let mut open_pulls = OpenPulls::default();
        open_pulls.opened(4, now);
        open_pulls.opened(1, now + GRACE);
        // The second request was filled, then the first expired with all four remaining.
        open_pulls.settle(1);
        assert_eq!(open_pulls.total(), 4);
        open_pulls.settle(4);
        assert_eq!((open_pulls.total(), open_pulls.overdue_at()), (0, None));
        open_pulls.settle(1);
        open_pulls.opened(2, now);
        assert_eq!(open_pulls.overdue_at(), Some(now + GRACE));
        open_pulls.settle_ended(None);
        assert_eq!(open_pulls.total(), 0);
    }
}
