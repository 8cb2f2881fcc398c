//! A snapshot of the runnable sessions of every pool, for queue positions.

use std::collections::HashMap;

use remuda_domain::Timestamp;
use uuid::Uuid;

use crate::QueuePosition;

/// The most runs of one session that count as ahead. A worker executes this many runs of a session in a row before it
/// lets other sessions go first. This is the default of `worker.turn`; the store does not know what each worker is
/// configured to.
const MAX_RUNS_IN_A_ROW: i64 = 50;

/// A session whose first run could start and that no live worker owns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuedSession {
    /// When its first run was submitted.
    pub(crate) since: Timestamp,
    pub(crate) session: Uuid,
    /// Number of its unfinished runs.
    pub(crate) pending: i64,
}

/// The runnable sessions by pool, at one moment.
#[derive(Debug, Default)]
pub(crate) struct RunnableQueue {
    pub(crate) pools: HashMap<String, Vec<QueuedSession>>,
    /// The scan hit its limit, so there may be more sessions.
    pub(crate) at_least: bool,
}

impl RunnableQueue {
    /// The position of a session whose first run was submitted at `since`. The session may be newer than the snapshot.
    pub(crate) fn position(&self, pool: &str, since: Timestamp, session: Uuid) -> QueuePosition {
        let mut position = QueuePosition { ahead: 0, runs_ahead: 0, at_least: self.at_least };
        let all = self.pools.get(pool).into_iter().flatten();
        for other in all.filter(|it| it.session != session && (it.since, it.session) < (since, session)) {
            position.ahead += 1;
            position.runs_ahead += other.pending.clamp(1, MAX_RUNS_IN_A_ROW);
        }
        position
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_counts_earlier_sessions_of_the_same_pool() {
        let at = |second: i64| Timestamp::UNIX_EPOCH + chrono::TimeDelta::seconds(second);
        let queued = |second, pending| QueuedSession { since: at(second), session: Uuid::now_v7(), pending };
        let all = [queued(1, 3), queued(2, 1000), queued(3, 1)];
        let pools = HashMap::from([("a".to_owned(), all.to_vec()), ("b".to_owned(), vec![queued(0, 1)])]);
        let queue = RunnableQueue { pools, at_least: false };
        let position = |pool, since, session| {
            let position = queue.position(pool, since, session);
            (position.ahead, position.runs_ahead)
        };
        assert_eq!(position("a", at(1), all[0].session), (0, 0));
        assert_eq!(position("a", at(3), all[2].session), (2, 53), "runs per session are capped");
        assert_eq!(position("a", at(9), Uuid::now_v7()), (3, 54), "a session newer than the snapshot");
        assert_eq!(position("c", at(9), Uuid::now_v7()), (0, 0));
    }
}
