//! The worker of this process, which takes what it is handed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::{Grant, Handed, Offer};

/// Who stands by, if somebody does. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct StandBy(Arc<Mutex<Option<Arc<Standing>>>>);

#[derive(Debug)]
pub(super) struct Standing {
    pub(super) offer: Offer,
    handed: mpsc::Sender<Handed>,
}

/// A free slot, and room to tell of what it is taken for.
#[derive(Debug)]
pub(super) struct Place<'a> {
    slot: OwnedSemaphorePermit,
    room: mpsc::Permit<'a, Handed>,
}

impl StandBy {
    pub(crate) fn offer(&self, offer: Offer) -> Option<mpsc::Receiver<Handed>> {
        let (handed, receiver) = mpsc::channel(offer.most.max(1));
        *self.lock() = Some(Arc::new(Standing { offer, handed }));
        Some(receiver)
    }

    pub(super) fn standing(&self) -> Option<Arc<Standing>> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Standing>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Standing {
    /// A place, unless all slots are in use, or the worker takes nothing more. What is handed over arrives, even if the worker says so
    /// meanwhile.
    pub(super) fn place(&self) -> Option<Place<'_>> {
        let room = self.handed.try_reserve().ok()?;
        let slot = Arc::clone(&self.offer.slots).try_acquire_owned().ok()?;
        Some(Place { slot, room })
    }
}

impl Place<'_> {
    pub(super) fn hand(self, grant: Box<Grant>) {
        self.room.send(Handed { grant, slot: self.slot });
    }
}
