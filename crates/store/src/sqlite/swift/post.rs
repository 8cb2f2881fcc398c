//! The place of the worker that stands by.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{Seats, StandBy};

/// Who stands by, if somebody does. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Post(Arc<Mutex<Option<StandBy>>>);

impl Post {
    pub(crate) fn take(&self, stand_by: StandBy) -> bool {
        *self.lock() = Some(stand_by);
        true
    }

    /// Whoever stands by at the moment, and where there is room.
    pub(super) fn on_duty(&self) -> Option<(StandBy, Arc<dyn Seats>)> {
        let mut post = self.lock();
        let seats = post.as_ref()?.seats.upgrade();
        match seats {
            Some(seats) => post.clone().zip(Some(seats)),
            None => {
                *post = None;
                None
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<StandBy>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
