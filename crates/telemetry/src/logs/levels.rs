//! The filter of this process, and how it is changed for a while.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};
use tracing::level_filters::LevelFilter;

use super::filter::{Filter, parse};
use crate::Error;

/// Longer than any filter that a person writes.
const MAX_CHARS: usize = 1000;

/// Whether a filter can be set while the process runs.
///
/// Stricter than at the start: a word that is no level would be taken for the name of a module, and everything else be silent.
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

/// What a process logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    pub filter: String,
    /// What it goes back to.
    pub start: String,
    /// When it does. `None`: it is the start value.
    pub until: Option<SystemTime>,
}

/// The filter of this process. Cheap to clone.
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
    ends: Option<Instant>,
}

impl Levels {
    /// A filter that nobody asks, until it is a part of a subscriber.
    pub fn new(start: &str) -> Result<Self, Error> {
        let level = Level { filter: start.to_owned(), start: start.to_owned(), until: None };
        let state = Mutex::new(State { level, ends: None });
        Ok(Self(Arc::new(Shared { filter: Filter::new(start)?, state, changed: Notify::new() })))
    }

    pub(crate) fn filter(&self) -> Filter {
        self.0.filter.clone()
    }

    #[must_use]
    pub fn current(&self) -> Level {
        self.state().level.clone()
    }

    /// Logs by this filter for a while. Somebody has to [`Levels::keep`] the time.
    pub fn set(&self, filter: &str, lasts: Duration) -> Result<(), Error> {
        check_change(filter)?;
        let mut state = self.state();
        self.0.filter.set(filter)?;
        state.level.filter = filter.to_owned();
        state.level.until = SystemTime::now().checked_add(lasts);
        state.ends = Some(Instant::now() + lasts);
        drop(state);
        self.0.changed.notify_one();
        Ok(())
    }

    /// Goes back to the start value.
    pub fn reset(&self) {
        let mut state = self.state();
        let start = state.level.start.clone();
        // It was good when the process started.
        if self.0.filter.set(&start).is_ok() {
            state.level = Level { filter: start.clone(), start, until: None };
            state.ends = None;
        }
    }

    /// Returns when a filter's time is over, having gone back to the start value. Cancel-safe.
    pub async fn keep(&self) -> Level {
        loop {
            let ends = self.state().ends;
            match ends {
                None => self.0.changed.notified().await,
                Some(at) => tokio::select! {
                    () = self.0.changed.notified() => {}
                    () = sleep_until(at) => {
                        // Somebody may have prolonged it at this moment.
                        if self.state().ends.is_some_and(|ends| ends <= Instant::now()) {
                            self.reset();
                            return self.current();
                        }
                    }
                },
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
