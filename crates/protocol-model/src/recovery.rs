//! Whether everything ends once faults cease.
//!
//! "Every run ends" cannot be checked on a single state, and stateright's `eventually` overlooks cycles, of which the
//! protocol has many: a token is refused and redelivered. Instead, every reachable state is checked for a path to a
//! final state, using the protocol's own steps, without faults and new runs. In a finite model this means that every
//! fair execution in which faults cease gets there. Both a deadlock and a livelock without exit fail this check.

use std::{
    collections::HashSet,
    hash::{DefaultHasher, Hash, Hasher},
};

use crate::{
    action::Action,
    protocol::Protocol,
    state::{State, Token},
};
use parking_lot::Mutex;

/// Remembers, by hash, the states from which a final state is reachable: most paths soon meet.
#[derive(Debug, Default)]
pub(crate) struct Recovery(Mutex<HashSet<u64>>);

impl Recovery {
    /// Searches for a path from `start` to a final state, using only `allowed` actions.
    pub(crate) fn is_possible(
        &self,
        protocol: &Protocol,
        start: &State,
        allowed: fn(&Action) -> bool,
    ) -> bool {
        let mut known = self.0.lock();
        let mut visited = HashSet::new();
        let mut path: Vec<(u64, State, Vec<Action>)> = Vec::new();
        let mut current = Some(start.clone());
        loop {
            if let Some(state) = current.take() {
                let key = key(&state);
                if is_done(&state) || known.contains(&key) {
                    known.extend(path.iter().map(|(key, ..)| *key).chain([key]));
                    return true;
                }
                if visited.insert(key) {
                    let mut actions = Vec::new();
                    protocol.own_actions(&state, &mut actions);
                    actions.retain(allowed);
                    actions.reverse();
                    path.push((key, state, actions));
                }
            }
            let Some((_, state, remaining)) = path.last_mut() else { return false };
            match remaining.pop() {
                Some(action) => current = Some(protocol.after(state, action)),
                None => drop(path.pop()),
            }
        }
    }
}

/// All runs have ended, without remaining tasks, in-flight grants or deliverable tokens. An orphan may remain;
/// whether it harms a next run is checked in the states that have one.
fn is_done(state: &State) -> bool {
    let sessions = || state.sessions.iter();
    sessions().all(|session| session.runs.iter().all(|run| run.ends > 0) && session.wakes == 0)
        && sessions().all(|session| session.token != Token::Present)
        && state
            .incarnations()
            .all(|incarnation| incarnation.tasks.is_empty() && incarnation.in_flight_grants.is_empty())
}

fn key(state: &State) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}
