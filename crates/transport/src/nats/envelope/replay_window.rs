//! Detects messages that one subscription receives a second time.

use std::collections::HashMap;

use super::proof::Claims;

/// How far messages of one process may overtake each other.
const WIDTH: u64 = 128;
/// Processes that are remembered before old ones are forgotten for the first time.
const FIRST_PRUNING: usize = 64;

/// The messages that a subscription has received, by sending process. Only proven messages enter, so nobody else can
/// fill it.
#[derive(Debug)]
pub(in crate::nats) struct ReplayWindow {
    processes: HashMap<u64, Received>,
    prune_at: usize,
}

#[derive(Debug)]
struct Received {
    highest: u64,
    /// Bit `n` stands for message `highest - n`.
    bits: u128,
    last_sent_at: u64,
}

impl Default for ReplayWindow {
    fn default() -> Self {
        Self { processes: HashMap::new(), prune_at: FIRST_PRUNING }
    }
}

impl ReplayWindow {
    /// Whether the message is new. `oldest` is the oldest time at which a message is still accepted: what a process
    /// sent before cannot be replayed, so it is forgotten.
    pub(super) fn accept(&mut self, claims: &Claims, oldest: u64) -> bool {
        if self.processes.len() >= self.prune_at {
            self.processes.retain(|_, received| received.last_sent_at >= oldest);
            self.prune_at = (2 * self.processes.len()).max(FIRST_PRUNING);
        }
        let received = self.processes.entry(claims.process).or_insert(Received {
            highest: claims.count,
            bits: 0,
            last_sent_at: 0,
        });
        received.last_sent_at = received.last_sent_at.max(claims.sent_at);
        if let Some(ahead @ 1..) = claims.count.checked_sub(received.highest) {
            received.bits = if ahead < WIDTH { received.bits << ahead } else { 0 };
            received.highest = claims.count;
        }
        let behind = received.highest - claims.count;
        let bit = if behind < WIDTH { 1 << behind } else { return false };
        let is_new = received.bits & bit == 0;
        received.bits |= bit;
        is_new
    }
}

#[cfg(test)]
mod tests {
    use remuda_domain::{WorkerId, bus::BusSigner};

    use super::*;

    fn claims(process: u64, count: u64) -> Claims {
        Claims {
            signer: BusSigner::Worker(WorkerId::from_uuid(uuid::Uuid::nil())),
            process,
            sent_at: count,
            count,
        }
    }

    #[test]
    fn message_is_accepted_once_also_if_others_overtake_it() {
        let mut window = ReplayWindow::default();
        for count in [5, 7, 6, 8, 200, 199, 150] {
            assert!(window.accept(&claims(1, count), 0), "{count}");
            assert!(!window.accept(&claims(1, count), 0), "{count}");
        }
        assert!(!window.accept(&claims(1, 200 - WIDTH), 0), "too far behind to know");
        assert!(window.accept(&claims(2, 5), 0), "another process");
        assert!(window.accept(&claims(1, u64::MAX), 0) && !window.accept(&claims(1, u64::MAX), 0));
    }

    #[test]
    fn processes_are_forgotten_when_their_messages_are_too_old_to_be_accepted() {
        let mut window = ReplayWindow::default();
        for process in 0..1000 {
            assert!(window.accept(&claims(process, process), process.saturating_sub(10)));
        }
        assert!(window.processes.len() <= FIRST_PRUNING);
        assert!(!window.accept(&claims(999, 999), 989), "a recent one is remembered");
    }
}
