//! The sessions that a worker could take.

use std::collections::HashMap;

use remuda_domain::Timestamp;
use uuid::Uuid;

use crate::Place;

/// How many runs of a session are counted at most. A worker executes so many in a row before it lets others go first; this is the default
/// of `worker.turn`, as what workers are set to is not known here.
const TURN: i64 = 50;

/// A session whose first run could start, and that no live worker owns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    /// When its first run was submitted.
    pub(crate) since: Timestamp,
    pub(crate) session: Uuid,
    /// Its unfinished runs.
    pub(crate) pending: i64,
}

/// All of them by pool, as they were at one moment.
#[derive(Debug, Default)]
pub(crate) struct Line {
    pub(crate) pools: HashMap<String, Vec<Waiting>>,
    /// Not all were looked at.
    pub(crate) at_least: bool,
}

impl Line {
    /// The place of a session whose first run was submitted then. It may have come after the look.
    pub(crate) fn place(&self, pool: &str, since: Timestamp, session: Uuid) -> Place {
        let mut place = Place { ahead: 0, runs_ahead: 0, at_least: self.at_least };
        let all = self.pools.get(pool).into_iter().flatten();
        for other in all.filter(|it| it.session != session && (it.since, it.session) < (since, session)) {
            place.ahead += 1;
            place.runs_ahead += other.pending.clamp(1, TURN);
        }
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_counts_what_is_before_it_in_its_pool() {
        let at = |second: i64| Timestamp::UNIX_EPOCH + chrono::TimeDelta::seconds(second);
        let waiting = |second, pending| Waiting { since: at(second), session: Uuid::now_v7(), pending };
        let all = [waiting(1, 3), waiting(2, 1000), waiting(3, 1)];
        let pools = HashMap::from([("a".to_owned(), all.to_vec()), ("b".to_owned(), vec![waiting(0, 1)])]);
        let line = Line { pools, at_least: false };
        let place = |pool, since, session| {
            let place = line.place(pool, since, session);
            (place.ahead, place.runs_ahead)
        };
        assert_eq!(place("a", at(1), all[0].session), (0, 0));
        assert_eq!(place("a", at(3), all[2].session), (2, 53), "a turn has an end");
        assert_eq!(place("a", at(9), Uuid::now_v7()), (3, 54), "one that came after the look");
        assert_eq!(place("c", at(9), Uuid::now_v7()), (0, 0));
    }
}
