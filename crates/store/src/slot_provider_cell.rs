//! A cell that holds the registered [`SlotProvider`].

use std::sync::{Arc, Weak};

use crate::SlotProvider;
use parking_lot::{Mutex, MutexGuard};

/// The registered slot provider, if any. Cheap to clone; all clones share the same provider.
#[derive(Clone, Debug, Default)]
pub(crate) struct SlotProviderCell(Arc<Mutex<Option<Weak<dyn SlotProvider>>>>);

impl SlotProviderCell {
    /// Registers a provider and replaces the previous one.
    pub(crate) fn set(&self, provider: Weak<dyn SlotProvider>) {
        *self.lock() = Some(provider);
    }

    /// The registered provider, unless it was dropped.
    pub(crate) fn get(&self) -> Option<Arc<dyn SlotProvider>> {
        let mut cell = self.lock();
        let provider = cell.as_ref()?.upgrade();
        if provider.is_none() {
            *cell = None;
        }
        provider
    }

    fn lock(&self) -> MutexGuard<'_, Option<Weak<dyn SlotProvider>>> {
        self.0.lock()
    }
}
