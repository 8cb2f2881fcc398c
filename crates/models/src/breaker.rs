//! Spares an endpoint that fails again and again.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

/// Closed until failures in a row open it; after a while one call may probe, and what becomes of that decides.
#[derive(Debug)]
pub(crate) struct Breaker {
    failures: u32,
    open_for: Duration,
    state: Mutex<State>,
    /// Somebody who waits may look again.
    changed: Notify,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Closed { failures: u32 },
    Open { until: Instant },
    Probing,
}

/// Leave to make one attempt. Dropped without a verdict, it says nothing about the endpoint.
#[derive(Debug)]
pub(crate) struct Permit {
    breaker: Arc<Breaker>,
    probes: bool,
    settled: bool,
}

impl Breaker {
    pub(crate) fn new(failures: u32, open_for: Duration) -> Self {
        let state = Mutex::new(State::Closed { failures: 0 });
        Self { failures: failures.max(1), open_for, state, changed: Notify::new() }
    }

    /// Leave for an attempt, or how long to wait before one makes sense.
    pub(crate) fn admit(self: &Arc<Self>) -> Result<Permit, Duration> {
        let mut state = self.state();
        let now = Instant::now();
        let probes = match *state {
            State::Closed { .. } => false,
            State::Open { until } if until <= now => true,
            State::Open { until } => return Err(until - now),
            State::Probing => return Err(self.open_for),
        };
        if probes {
            *state = State::Probing;
        }
        Ok(Permit { breaker: Arc::clone(self), probes, settled: false })
    }

    /// Waits for leave, at most as long as given. Says what is left to wait otherwise.
    pub(crate) async fn wait(self: &Arc<Self>, patience: Duration) -> Result<Permit, Duration> {
        let deadline = Instant::now() + patience;
        loop {
            // Registered before the look, so that no change in between is missed.
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let remaining = match self.admit() {
                Ok(permit) => return Ok(permit),
                Err(remaining) => remaining,
            };
            let now = Instant::now();
            if deadline <= now {
                return Err(remaining);
            }
            let until = deadline.min(now + remaining);
            // Either way, the next look decides.
            drop(tokio::time::timeout_at(until, changed).await);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks and changes in one step; nothing happens when there is nothing to change.
    fn change(&self, change: impl FnOnce(State) -> Option<State>) {
        let mut state = self.state();
        if let Some(next) = change(*state) {
            *state = next;
            drop(state);
            self.changed.notify_waiters();
        }
    }

    fn opened(&self) -> State {
        State::Open { until: Instant::now() + self.open_for }
    }
}

impl Permit {
    /// The endpoint did its part.
    pub(crate) fn succeeded(mut self) {
        self.settled = true;
        self.breaker.change(|state| match state {
            State::Closed { .. } => Some(State::Closed { failures: 0 }),
            // An answer that was long on its way says nothing about an endpoint that has failed since.
            State::Open { .. } | State::Probing => self.probes.then_some(State::Closed { failures: 0 }),
        });
    }

    /// It did not.
    pub(crate) fn failed(mut self) {
        self.settled = true;
        let breaker = &self.breaker;
        breaker.change(|state| match state {
            _ if self.probes => Some(breaker.opened()),
            State::Closed { failures } if failures + 1 >= breaker.failures => Some(breaker.opened()),
            State::Closed { failures } => Some(State::Closed { failures: failures + 1 }),
            State::Open { .. } | State::Probing => None,
        });
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.probes && !self.settled {
            self.breaker.change(|_| Some(State::Open { until: Instant::now() }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaker() -> Arc<Breaker> {
        Arc::new(Breaker::new(2, Duration::from_secs(15)))
    }

    fn fail(breaker: &Arc<Breaker>) {
        breaker.admit().unwrap().failed();
    }

    #[tokio::test(start_paused = true)]
    async fn opens_after_failures_in_a_row_and_lets_one_probe() {
        let breaker = breaker();
        fail(&breaker);
        breaker.admit().unwrap().succeeded();
        fail(&breaker);
        fail(&breaker);
        assert_eq!(breaker.admit().unwrap_err(), Duration::from_secs(15));
        tokio::time::advance(Duration::from_secs(15)).await;
        let probe = breaker.admit().unwrap();
        assert!(breaker.admit().is_err(), "one probe at a time");
        probe.failed();
        assert!(breaker.admit().is_err(), "open again");
        tokio::time::advance(Duration::from_secs(15)).await;
        breaker.admit().unwrap().succeeded();
        fail(&breaker);
        assert!(breaker.admit().is_ok(), "it counts from nothing again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_is_dropped_leaves_the_chance_to_the_next() {
        let breaker = breaker();
        fail(&breaker);
        fail(&breaker);
        tokio::time::advance(Duration::from_secs(15)).await;
        drop(breaker.admit().unwrap());
        assert!(breaker.admit().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_wait_go_on_as_soon_as_a_probe_succeeds() {
        let breaker = breaker();
        fail(&breaker);
        fail(&breaker);
        tokio::time::advance(Duration::from_secs(15)).await;
        let probe = breaker.admit().unwrap();
        let start = Instant::now();
        let waiting = breaker.wait(Duration::from_secs(10));
        let settling = async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            probe.succeeded();
        };
        let (permit, ()) = tokio::join!(waiting, settling);
        permit.unwrap().succeeded();
        assert_eq!(start.elapsed(), Duration::from_secs(3));
    }

    #[tokio::test(start_paused = true)]
    async fn patience_ends() {
        let breaker = breaker();
        fail(&breaker);
        fail(&breaker);
        let left = breaker.wait(Duration::from_secs(5)).await.unwrap_err();
        assert_eq!(left, Duration::from_secs(10));
        assert!(breaker.wait(Duration::from_secs(11)).await.is_ok(), "it waits for the time of the probe");
    }
}
