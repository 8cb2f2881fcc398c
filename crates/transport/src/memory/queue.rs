//! The token queue of one pool.

use std::{
    collections::{BTreeMap, HashMap, VecDeque, hash_map::Entry},
    time::Duration,
};

use parking_lot::Mutex;
use remuda_domain::{SessionId, TenantId, trace::TraceContext};
use tokio::{
    sync::{Notify, futures::Notified},
    time::Instant,
};

use crate::traits::{Published, TokenCounts};

/// Identifies a token, as the subject does over NATS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TokenKey {
    pub(super) tenant: TenantId,
    pub(super) session: SessionId,
}

/// A token, with the trace context it was published with.
pub(super) type TakenToken = (TokenKey, Option<TraceContext>);

#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    wake: Notify,
}

#[derive(Default)]
struct State {
    /// All tokens: waiting, delayed or taken.
    tokens: HashMap<TokenKey, TokenState>,
    waiting: VecDeque<TokenKey>,
    /// Tokens put back with a delay, by due time. The number keeps those of one instant apart and in order.
    delayed: BTreeMap<(Instant, u64), TokenKey>,
    next_number: u64,
}

/// State of a token.
struct TokenState {
    /// Trace context it was published with.
    origin: Option<TraceContext>,
    /// It has been delivered before.
    taken: bool,
}

/// Tokens taken from the queue.
pub(super) struct PoppedTokens {
    pub(super) keys: Vec<TakenToken>,
    /// How many of them had been delivered before.
    pub(super) redelivered: u64,
    /// When the next delayed token is due.
    pub(super) next_due: Option<Instant>,
}

impl State {
    /// Moves due tokens to the end of the queue.
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
    pub(super) fn publish(&self, key: TokenKey, origin: Option<TraceContext>) -> Published {
        {
            let mut state = self.state.lock();
            match state.tokens.entry(key) {
                Entry::Occupied(_) => return Published::AlreadyScheduled,
                Entry::Vacant(entry) => entry.insert(TokenState { origin, taken: false }),
            };
            state.waiting.push_back(key);
        }
        self.wake.notify_one();
        Published::Stored
    }

    /// Takes up to `max` tokens, oldest first.
    pub(super) fn pop(&self, max: usize) -> PoppedTokens {
        let mut state = self.state.lock();
        state.advance();
        let count = max.min(state.waiting.len());
        let State { waiting, tokens, .. } = &mut *state;
        let mut redelivered = 0;
        let taken = waiting.drain(..count).map(|key| {
            let Some(tokens) = tokens.get_mut(&key) else { return (key, None) };
            redelivered += u64::from(std::mem::replace(&mut tokens.taken, true));
            (key, tokens.origin)
        });
        let keys = taken.collect();
        PoppedTokens {
            keys,
            redelivered,
            next_due: state.delayed.first_key_value().map(|((due, _), _)| *due),
        }
    }

    pub(super) fn remove(&self, key: TokenKey) {
        self.state.lock().tokens.remove(&key);
    }

    /// Puts a taken token back, immediately or after a delay.
    pub(super) fn put_back(&self, key: TokenKey, delay: Duration) {
        {
            let mut state = self.state.lock();
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
            // Waiting tasks have to recompute their deadline.
            self.wake.notify_waiters();
        }
    }

    pub(super) fn woken(&self) -> Notified<'_> {
        self.wake.notified()
    }

    pub(super) fn counts(&self) -> TokenCounts {
        let mut state = self.state.lock();
        state.advance();
        let waiting = state.waiting.len();
        TokenCounts { waiting: waiting as u64, taken: (state.tokens.len() - waiting) as u64 }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let state = self.state.lock();
        state.tokens.is_empty() && state.waiting.is_empty() && state.delayed.is_empty()
    }
}
