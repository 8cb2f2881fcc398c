//! Tracks the unfinished runs and the newest cursor of each session, so that queues keep a limited depth.

use std::{collections::HashSet, sync::Arc};

use parking_lot::Mutex;

/// The limit of unfinished runs per session.
const MAX_UNFINISHED: usize = 8;

/// The state of all sessions.
#[derive(Debug)]
pub(crate) struct SessionTracker(Vec<Mutex<SessionState>>);

#[derive(Debug, Default)]
struct SessionState {
    /// The newest received cursor.
    cursor: i64,
    /// Submits without an answer.
    in_flight: usize,
    open: HashSet<Arc<str>>,
    /// Runs that ended before their submit was answered.
    ended_early: HashSet<Arc<str>>,
}

impl SessionTracker {
    pub(crate) fn new(sessions: usize) -> Self {
        Self((0..sessions).map(|_| Mutex::default()).collect())
    }

    /// Reserves one unfinished run of a session, if the limit allows it.
    pub(crate) fn reserve(&self, session: usize) -> bool {
        self.with(session, |state| {
            let free = state.in_flight + state.open.len() < MAX_UNFINISHED;
            state.in_flight += usize::from(free);
            free
        })
    }

    /// Records the answer to a submit, with the run if it was accepted.
    pub(crate) fn record_answer(&self, session: usize, run: Option<&Arc<str>>) {
        self.with(session, |state| {
            state.in_flight -= 1;
            if let Some(run) = run
                && !state.ended_early.remove(run)
            {
                state.open.insert(Arc::clone(run));
            }
        });
    }

    /// Records the end of a run.
    pub(crate) fn record_end(&self, session: usize, run: &Arc<str>) {
        self.with(session, |state| {
            if !state.open.remove(run) {
                state.ended_early.insert(Arc::clone(run));
            }
        });
    }

    /// Records a received event.
    pub(crate) fn record_cursor(&self, session: usize, cursor: i64) {
        self.with(session, |state| state.cursor = state.cursor.max(cursor));
    }

    pub(crate) fn cursor(&self, session: usize) -> i64 {
        self.with(session, |state| state.cursor)
    }

    fn with<T>(&self, session: usize, change: impl FnOnce(&mut SessionState) -> T) -> T {
        change(&mut self.0[session].lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_run_frees_its_reservation_even_before_the_answer() {
        let tracker = SessionTracker::new(1);
        let runs: Vec<Arc<str>> = (0..MAX_UNFINISHED).map(|run| run.to_string().into()).collect();
        for run in &runs {
            assert!(tracker.reserve(0));
            tracker.record_answer(0, Some(run));
        }
        assert!(!tracker.reserve(0));
        tracker.record_end(0, &runs[0]);
        assert!(tracker.reserve(0));
        let early: Arc<str> = "early".into();
        tracker.record_end(0, &early);
        tracker.record_answer(0, Some(&early));
        assert!(tracker.reserve(0));
        tracker.record_answer(0, None);
        assert!(tracker.reserve(0));
        assert!(!tracker.reserve(0));
    }
}
