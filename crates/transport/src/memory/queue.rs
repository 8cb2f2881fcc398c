//! The tokens of one pool.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    sync::Mutex,
    time::Duration,
};

use remuda_domain::{SessionId, TenantId};
use tokio::{
    sync::{Notify, futures::Notified},
    time::Instant,
};

use super::lock;
use crate::traits::{Published, TokenCounts};

/// Whom a token is for; what the subject of a token is over NATS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TokenKey {
    pub(super) tenant: TenantId,
    pub(super) session: SessionId,
}

#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    wake: Notify,
}

#[derive(Default)]
struct State {
    /// Every token there is: waiting, delayed or taken.
    known: HashSet<TokenKey>,
    waiting: VecDeque<TokenKey>,
    /// Tokens given back for later, by when; the number keeps those of one instant apart and in order.
    delayed: BTreeMap<(Instant, u64), TokenKey>,
    next_number: u64,
}

impl State {
    /// Moves what is due to the end of the line.
    fn advance(&mut self) {
        let now = Instant::now();
        while let Some(entry) = self.delayed.first_entry() {
            if entry.key().0 > now {
                break;
            }
            self.waiting.push_back(entry.remove());
        }
    }
}

impl Queue {
    pub(super) fn publish(&self, key: TokenKey) -> Published {
        {
            let mut state = lock(&self.state);
            if !state.known.insert(key) {
                return Published::AlreadyScheduled;
            }
            state.waiting.push_back(key);
        }
        self.wake.notify_one();
        Published::Stored
    }

    /// Takes up to `max` tokens, oldest first, and says when the next delayed one is due.
    pub(super) fn pop(&self, max: usize) -> (Vec<TokenKey>, Option<Instant>) {
        let mut state = lock(&self.state);
        state.advance();
        let count = max.min(state.waiting.len());
        let keys = state.waiting.drain(..count).collect();
        (keys, state.delayed.first_key_value().map(|((due, _), _)| *due))
    }

    pub(super) fn remove(&self, key: TokenKey) {
        lock(&self.state).known.remove(&key);
    }

    /// Puts a taken token back, at once or for later.
    pub(super) fn give_back(&self, key: TokenKey, delay: Duration) {
        {
            let mut state = lock(&self.state);
            if delay.is_zero() {
                state.waiting.push_back(key);
            } else {
                let number = state.next_number;
                state.next_number += 1;
                state.delayed.insert((Instant::now() + delay, number), key);
            }
        }
        if delay.is_zero() {
            self.wake.notify_one();
        } else {
            // Whoever waits has to look at the clock anew.
            self.wake.notify_waiters();
        }
    }

    pub(super) fn woken(&self) -> Notified<'_> {
        self.wake.notified()
    }

    pub(super) fn counts(&self) -> TokenCounts {
        let mut state = lock(&self.state);
        state.advance();
        let waiting = state.waiting.len();
        TokenCounts { waiting: waiting as u64, taken: (state.known.len() - waiting) as u64 }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let state = lock(&self.state);
        state.known.is_empty() && state.waiting.is_empty() && state.delayed.is_empty()
    }
}
