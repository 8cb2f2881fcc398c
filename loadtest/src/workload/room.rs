//! What the driver knows of each session: how many unfinished runs it has, so that queues stay as deep as they should
//! be, and how far its events have come.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
};

/// Unfinished runs of one session that the workload aims at.
const DEPTH: usize = 8;

/// All sessions.
#[derive(Debug)]
pub(crate) struct Rooms(Vec<Mutex<Room>>);

#[derive(Debug, Default)]
struct Room {
    /// The newest event that anybody has seen.
    cursor: i64,
    /// Submits without an answer.
    in_flight: usize,
    open: HashSet<Arc<str>>,
    /// Ended before their submit was answered.
    ended_early: HashSet<Arc<str>>,
}

impl Rooms {
    pub(crate) fn new(sessions: usize) -> Self {
        Self((0..sessions).map(|_| Mutex::default()).collect())
    }

    /// Takes a place in a session's queue, if there is one.
    pub(crate) fn enter(&self, session: usize) -> bool {
        self.with(session, |room| {
            let free = room.in_flight + room.open.len() < DEPTH;
            room.in_flight += usize::from(free);
            free
        })
    }

    /// The submit was answered; with a run if it was accepted.
    pub(crate) fn answered(&self, session: usize, run: Option<&Arc<str>>) {
        self.with(session, |room| {
            room.in_flight -= 1;
            if let Some(run) = run
                && !room.ended_early.remove(run)
            {
                room.open.insert(Arc::clone(run));
            }
        });
    }

    /// A run has ended.
    pub(crate) fn ended(&self, session: usize, run: &Arc<str>) {
        self.with(session, |room| {
            if !room.open.remove(run) {
                room.ended_early.insert(Arc::clone(run));
            }
        });
    }

    /// An event was seen.
    pub(crate) fn reached(&self, session: usize, cursor: i64) {
        self.with(session, |room| room.cursor = room.cursor.max(cursor));
    }

    pub(crate) fn cursor(&self, session: usize) -> i64 {
        self.with(session, |room| room.cursor)
    }

    fn with<T>(&self, session: usize, change: impl FnOnce(&mut Room) -> T) -> T {
        change(&mut self.0[session].lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_free_again_when_its_run_has_ended_also_before_the_answer() {
        let rooms = Rooms::new(1);
        let runs: Vec<Arc<str>> = (0..DEPTH).map(|run| run.to_string().into()).collect();
        for run in &runs {
            assert!(rooms.enter(0));
            rooms.answered(0, Some(run));
        }
        assert!(!rooms.enter(0));
        rooms.ended(0, &runs[0]);
        assert!(rooms.enter(0));
        let early: Arc<str> = "early".into();
        rooms.ended(0, &early);
        rooms.answered(0, Some(&early));
        assert!(rooms.enter(0));
        rooms.answered(0, None);
        assert!(rooms.enter(0));
        assert!(!rooms.enter(0));
    }
}
