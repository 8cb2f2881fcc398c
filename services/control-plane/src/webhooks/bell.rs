//! Calls the deliverer: something may have happened that a webhook wants to be told.

use std::{
    collections::HashSet,
    mem,
    sync::{Arc, Mutex, PoisonError},
};

use remuda_store::ActiveWebhook;
use tokio::sync::Notify;

use super::desk::Hook;

/// What is not answered yet. More is forgotten: the deliverer looks through all webhooks now and then anyway.
const MAX_CALLS: usize = 10_000;

/// Rung by whoever knows of news, heard by the deliverer of this process. Cheap to clone. A ring is a hint and no promise.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bell(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    calls: Mutex<Calls>,
    rung: Notify,
}

#[derive(Debug, Default)]
pub(super) struct Calls {
    /// Those with something to do.
    pub(super) called: HashSet<Hook>,
    /// Those that are new, or that have something to do and may not be known.
    pub(super) added: Vec<ActiveWebhook>,
}

impl Calls {
    fn is_empty(&self) -> bool {
        self.called.is_empty() && self.added.is_empty()
    }
}

impl Bell {
    pub(super) fn call(&self, hooks: impl IntoIterator<Item = Hook>) {
        self.with(|calls| {
            for hook in hooks {
                if calls.called.len() < MAX_CALLS {
                    calls.called.insert(hook);
                }
            }
        });
    }

    pub(crate) fn add(&self, webhook: ActiveWebhook) {
        self.with(|calls| {
            if calls.added.len() < MAX_CALLS {
                calls.added.push(webhook);
            }
        });
    }

    fn with(&self, change: impl FnOnce(&mut Calls)) {
        change(&mut self.0.calls.lock().unwrap_or_else(PoisonError::into_inner));
        self.0.rung.notify_one();
    }

    /// Waits for calls and takes them. Cancel-safe.
    pub(super) async fn heard(&self) -> Calls {
        loop {
            let calls = self.take();
            if !calls.is_empty() {
                return calls;
            }
            self.0.rung.notified().await;
        }
    }

    pub(super) fn take(&self) -> Calls {
        mem::take(&mut self.0.calls.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
