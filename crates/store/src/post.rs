//! Who has room for what is granted without having been asked for.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::Seats;

/// The place of whoever stands by. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Post(Arc<Mutex<Option<Weak<dyn Seats>>>>);

impl Post {
    pub(crate) fn take(&self, seats: Weak<dyn Seats>) {
        *self.lock() = Some(seats);
    }

    /// Whoever stands by at the moment.
    pub(crate) fn on_duty(&self) -> Option<Arc<dyn Seats>> {
        let mut post = self.lock();
        let seats = post.as_ref()?.upgrade();
        if seats.is_none() {
            *post = None;
        }
        seats
    }

    fn lock(&self) -> MutexGuard<'_, Option<Weak<dyn Seats>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
