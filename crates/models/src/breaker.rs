//! A circuit breaker for an endpoint.

use std::{sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::Notify, time::Instant};

/// Closed until consecutive failures open it. After a while one call may probe, and its result closes or reopens the
/// breaker.
#[derive(Debug)]
pub(crate) struct Breaker {
    failures: u32,
    open_for: Duration,
    state: Mutex<State>,
    /// Wakes waiters when the state changes.
    changed: Notify,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Closed { failures: u32 },
    Open { until: Instant },
    Probing,
}

/// Permission for one attempt. If it is dropped without a result, it says nothing about the endpoint.
#[derive(Debug)]
pub(crate) struct Permit {
    breaker: Arc<Breaker>,
    is_probe: bool,
    settled: bool,
}

impl Breaker {
    pub(crate) fn new(failures: u32, open_for: Duration) -> Self {
        let state = Mutex::new(State::Closed { failures: 0 });
        Self { failures: failures.max(1), open_for, state, changed: Notify::new() }
    }

    /// A permit, or how long to wait before the next attempt makes sense.
    pub(crate) fn admit(self: &Arc<Self>) -> Result<Permit, Duration> {
        let mut state = self.state();
        let now = Instant::now();
        let is_probe = match *state {
            State::Closed { .. } => false,
            State::Open { until } if until <= now => true,
            State::Open { until } => return Err(until - now),
            State::Probing => return Err(self.open_for),
        };
        if is_probe {
            *state = State::Probing;
        }
        Ok(Permit { breaker: Arc::clone(self), is_probe, settled: false })
    }

    /// Waits for a permit, at most for `max_wait`. Otherwise returns how long it would still take.
    pub(crate) async fn wait(self: &Arc<Self>, max_wait: Duration) -> Result<Permit, Duration> {
        let deadline = Instant::now() + max_wait;
        loop {
            // Registered before the check, so that no change in between is missed.
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
            // In both cases the next check decides.
            drop(tokio::time::timeout_at(until, changed).await);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Changes the state atomically, if `change` returns a new one.
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
    /// The endpoint responded properly.
    pub(crate) fn succeeded(mut self) {
        self.settled = true;
        self.breaker.change(|state| match state {
            State::Closed { .. } => Some(State::Closed { failures: 0 }),
            // A late response says nothing about an endpoint that has failed since.
            State::Open { .. } | State::Probing => self.is_probe.then_some(State::Closed { failures: 0 }),
        });
    }

    /// The endpoint failed.
    pub(crate) fn failed(mut self) {
        self.settled = true;
        let breaker = &self.breaker;
        breaker.change(|state| match state {
            _ if self.is_probe => Some(breaker.opened()),
            State::Closed { failures } if failures + 1 >= breaker.failures => Some(breaker.opened()),
            State::Closed { failures } => Some(State::Closed { failures: failures + 1 }),
            State::Open { .. } | State::Probing => None,
        });
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.is_probe && !self.settled {
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
    async fn opens_after_consecutive_failures_and_admits_one_probe() {
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
        assert!(breaker.admit().is_ok(), "the count starts again");
    }

    #[tokio::test(start_paused = true)]
    async fn dropped_probe_lets_the_next_call_probe() {
        let breaker = breaker();
        fail(&breaker);
        fail(&breaker);
        tokio::time::advance(Duration::from_secs(15)).await;
        drop(breaker.admit().unwrap());
        assert!(breaker.admit().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn waiters_are_admitted_as_soon_as_a_probe_succeeds() {
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
    async fn wait_ends_at_its_limit() {
        let breaker = breaker();
        fail(&breaker);
        fail(&breaker);
        let left = breaker.wait(Duration::from_secs(5)).await.unwrap_err();
        assert_eq!(left, Duration::from_secs(10));
        assert!(breaker.wait(Duration::from_secs(11)).await.is_ok(), "it waits until a probe is allowed");
    }
}
