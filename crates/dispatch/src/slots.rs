//! The free slots of all workers to which this process may grant sessions.

use std::{fmt, sync::Arc};

use parking_lot::RwLock;
use remuda_domain::{Pool, SessionId};
use remuda_store::{SlotProvider, SlotReservation};

/// Asks every attached provider in turn. The store is opened with it, before the workers and servers of the process
/// start; they attach what they have. Cheap to clone; all clones share the providers.
#[derive(Clone, Default)]
pub struct Slots {
    providers: Arc<RwLock<Vec<Arc<dyn SlotProvider>>>>,
}

impl Slots {
    /// Adds a provider until the result is dropped.
    pub fn attach(&self, provider: Arc<dyn SlotProvider>) -> AttachedSlots {
        self.providers.write().push(Arc::clone(&provider));
        AttachedSlots { slots: self.clone(), provider }
    }
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slots").field("providers", &self.providers.read().len()).finish()
    }
}

impl SlotProvider for Slots {
    fn reserve_slot(&self, pool: &Pool, session: SessionId) -> Option<Box<dyn SlotReservation>> {
        self.providers.read().iter().find_map(|provider| provider.reserve_slot(pool, session))
    }
}

/// A provider that is asked for slots. Dropping this removes it.
#[must_use = "the provider is removed when this is dropped"]
#[derive(Debug)]
pub struct AttachedSlots {
    slots: Slots,
    provider: Arc<dyn SlotProvider>,
}

impl Drop for AttachedSlots {
    fn drop(&mut self) {
        let mut providers = self.slots.providers.write();
        providers.retain(|provider| !Arc::ptr_eq(provider, &self.provider));
    }
}

#[cfg(test)]
mod tests {
    use remuda_domain::WorkerId;
    use remuda_store::Grant;

    use super::*;

    #[derive(Debug)]
    struct OneSlot {
        pool: Pool,
        worker: WorkerId,
    }

    impl SlotProvider for OneSlot {
        fn reserve_slot(&self, pool: &Pool, _: SessionId) -> Option<Box<dyn SlotReservation>> {
            (*pool == self.pool).then(|| Box::new(Reserved(self.worker)) as Box<dyn SlotReservation>)
        }
    }

    struct Reserved(WorkerId);

    impl SlotReservation for Reserved {
        fn worker(&self) -> WorkerId {
            self.0
        }

        fn assign(self: Box<Self>, _: Box<Grant>) {}
    }

    #[test]
    fn attached_provider_is_asked_until_it_is_detached() {
        let slots = Slots::default();
        let (default, gpu): (Pool, Pool) = (Pool::default(), "gpu".parse().unwrap());
        let worker = |pool: &Pool| slots.reserve_slot(pool, SessionId::new()).map(|it| it.worker());
        let (first, second) = (WorkerId::new(), WorkerId::new());
        assert_eq!(worker(&default), None);
        let attached = slots.attach(Arc::new(OneSlot { pool: default.clone(), worker: first }));
        let other = slots.attach(Arc::new(OneSlot { pool: gpu.clone(), worker: second }));
        assert_eq!((worker(&default), worker(&gpu)), (Some(first), Some(second)));
        drop(attached);
        assert_eq!((worker(&default), worker(&gpu)), (None, Some(second)));
        drop(other);
        assert_eq!(worker(&gpu), None);
    }
}
