//! The tokens of one pool.

use std::{
    collections::{BTreeMap, HashMap, VecDeque, hash_map::Entry},
    sync::Mutex,
    time::Duration,
};

use remuda_domain::{SessionId, TenantId, trace::TraceContext};
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

/// A token, with what it was published for.
pub(super) type Taken = (TokenKey, Option<TraceContext>);

#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    wake: Notify,
}

#[derive(Default)]
struct State {
    /// Every token there is: waiting, delayed or taken.
    known: HashMap<TokenKey, Known>,
    waiting: VecDeque<TokenKey>,
    /// Tokens given back for later, by when; the number keeps those of one instant apart and in order.
    delayed: BTreeMap<(Instant, u64), TokenKey>,
    next_number: u64,
}

/// What is remembered of a token.
struct Known {
    /// What it was published for.
    origin: Option<TraceContext>,
    /// It was in someone's hands before.
    taken: bool,
}

/// What was taken.
pub(super) struct Popped {
    pub(super) keys: Vec<Taken>,
    /// How many of them were taken before.
    pub(super) again: u64,
    /// When the next delayed one is due.
    pub(super) next_due: Option<Instant>,
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
    pub(super) fn publish(&self, key: TokenKey, origin: Option<TraceContext>) -> Published {
        {
            let mut state = lock(&self.state);
            match state.known.entry(key) {
                Entry::Occupied(_) => return Published::AlreadyScheduled,
                Entry::Vacant(place) => place.insert(Known { origin, taken: false }),
            };
            state.waiting.push_back(key);
        }
        self.wake.notify_one();
        Published::Stored
    }

    /// Takes up to `max` tokens, oldest first.
    pub(super) fn pop(&self, max: usize) -> Popped {
        let mut state = lock(&self.state);
        state.advance();
        let count = max.min(state.waiting.len());
        let State { waiting, known, .. } = &mut *state;
        let mut again = 0;
        let taken = waiting.drain(..count).map(|key| {
            let Some(known) = known.get_mut(&key) else { return (key, None) };
            again += u64::from(std::mem::replace(&mut known.taken, true));
            (key, known.origin)
        });
        let keys = taken.collect();
        Popped { keys, again, next_due: state.delayed.first_key_value().map(|((due, _), _)| *due) }
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
