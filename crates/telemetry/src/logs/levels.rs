//! Temporary changes of the log filter of this process.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};
use tracing::level_filters::LevelFilter;

use super::filter::{Filter, parse};
use crate::Error;

/// Limit for the length of a filter.
const MAX_CHARS: usize = 1000;

/// Checks a filter for [`Levels::set`].
///
/// Stricter than at startup: a mistyped level would be taken for the name of a module, and silence all others.
pub fn check_change(filter: &str) -> Result<(), Error> {
    if filter.chars().count() > MAX_CHARS {
        return Err(Error::LongFilter { max: MAX_CHARS });
    }
    parse(filter)?;
    for part in filter.split(',').map(str::trim) {
        let is_rule = part.contains(['=', '[']);
        let is_level = !part.is_empty() && part.parse::<LevelFilter>().is_ok();
        if !is_rule && !is_level {
            return Err(Error::NoLevel(part.to_owned()));
        }
    }
    Ok(())
}

/// The log filter of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    pub filter: String,
    /// The filter of the process start, which is restored.
    pub start: String,
    /// When it is restored. `None`: it is in effect.
    pub until: Option<SystemTime>,
}

/// A handle to the log filter of this process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Levels(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    filter: Filter,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    level: Level,
    expires: Option<Instant>,
}

impl Levels {
    /// Creates a filter, which has no effect until it is part of a subscriber.
    pub fn new(start: &str) -> Result<Self, Error> {
        let level = Level { filter: start.to_owned(), start: start.to_owned(), until: None };
        let state = Mutex::new(State { level, expires: None });
        Ok(Self(Arc::new(Shared { filter: Filter::new(start)?, state, changed: Notify::new() })))
    }

    pub(crate) fn filter(&self) -> Filter {
        self.0.filter.clone()
    }

    #[must_use]
    pub fn current(&self) -> Level {
        self.state().level.clone()
    }

    /// Sets the filter for a limited time. A task must call [`Levels::wait_for_expiry`] to restore it.
    pub fn set(&self, filter: &str, duration: Duration) -> Result<(), Error> {
        check_change(filter)?;
        let mut state = self.state();
        self.0.filter.set(filter)?;
        state.level.filter = filter.to_owned();
        state.level.until = SystemTime::now().checked_add(duration);
        state.expires = Some(Instant::now() + duration);
        drop(state);
        self.0.changed.notify_one();
        Ok(())
    }

    /// Restores the start value.
    pub fn reset(&self) {
        let mut state = self.state();
        let start = state.level.start.clone();
        // It was valid at the start of the process.
        if self.0.filter.set(&start).is_ok() {
            state.level = Level { filter: start.clone(), start, until: None };
            state.expires = None;
        }
    }

    /// Waits until a temporary filter expires, and restores the start value. Cancel-safe.
    pub async fn wait_for_expiry(&self) -> Level {
        loop {
            let expires = self.state().expires;
            match expires {
                None => self.0.changed.notified().await,
                Some(at) => tokio::select! {
                    () = self.0.changed.notified() => {}
                    () = sleep_until(at) => {
                        // It may have been extended concurrently.
                        if self.state().expires.is_some_and(|expires| expires <= Instant::now()) {
                            self.reset();
                            return self.current();
                        }
                    }
                },
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock()
    }
}
