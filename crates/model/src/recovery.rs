//! Whether everything comes to its end once nothing more breaks.
//!
//! "Every run ends" cannot be checked as a state's own property, and stateright's `eventually` overlooks cycles, of which
//! the protocol has many: a token is refused and comes back. What is checked instead, in every reachable state, is that a
//! state in which all is done can be reached by the protocol's own steps, without faults and without new runs. In a
//! finite world this means that every execution that is fair to all steps and in which faults cease does get there. A
//! state in which nothing moves, and a circle without a way out, both fail it.

use std::{
    collections::HashSet,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Mutex, PoisonError},
};

use crate::{
    action::Action,
    protocol::Protocol,
    state::{State, Token},
};

/// Remembers, by hash, from which states the end is reachable: the ways of most states soon meet.
#[derive(Debug, Default)]
pub(crate) struct Recovery(Mutex<HashSet<u64>>);

impl Recovery {
    /// Searches for a way from `start` to a state in which all is done, using only the steps that `allowed` lets through.
    pub(crate) fn is_possible(
        &self,
        protocol: &Protocol,
        start: &State,
        allowed: fn(&Action) -> bool,
    ) -> bool {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut visited = HashSet::new();
        let mut way: Vec<(u64, State, Vec<Action>)> = Vec::new();
        let mut arrived = Some(start.clone());
        loop {
            if let Some(state) = arrived.take() {
                let key = key(&state);
                if is_done(&state) || known.contains(&key) {
                    known.extend(way.iter().map(|(key, ..)| *key).chain([key]));
                    return true;
                }
                if visited.insert(key) {
                    let mut actions = Vec::new();
                    protocol.own_actions(&state, &mut actions);
                    actions.retain(allowed);
                    actions.reverse();
                    way.push((key, state, actions));
                }
            }
            let Some((_, state, untried)) = way.last_mut() else { return false };
            match untried.pop() {
                Some(action) => arrived = Some(protocol.after(state, action)),
                None => drop(way.pop()),
            }
        }
    }
}

/// All runs have ended, and nothing is left of them: no task, no parcel, and no token to be delivered. An orphan may be left;
/// whether it harms the next run is seen in the states in which there is one.
fn is_done(state: &State) -> bool {
    let sessions = || state.sessions.iter();
    sessions().all(|session| session.runs.iter().all(|run| run.ends > 0) && session.wakes == 0)
        && sessions().all(|session| session.token != Token::Present)
        && state.lives().all(|life| life.tasks.is_empty() && life.parcels.is_empty())
}

fn key(state: &State) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}
