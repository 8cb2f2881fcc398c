//! Notifies the deliverer of webhooks that may have something to deliver.

use std::{collections::HashSet, mem, sync::Arc};

use parking_lot::Mutex;
use remuda_store::ActiveWebhook;
use tokio::sync::Notify;

use super::scheduler::WebhookKey;

/// Pending notifications at once. More are dropped: the deliverer scans all webhooks now and then anyway.
const MAX_PENDING: usize = 10_000;

/// Collects notifications for the deliverer of this process. Cheap to clone. Best effort: a notification is a hint.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeliveryNotifier(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    pending: Mutex<Pending>,
    changed: Notify,
}

#[derive(Debug, Default)]
pub(super) struct Pending {
    /// Webhooks whose sessions had matching events.
    pub(super) ready: HashSet<WebhookKey>,
    /// Webhooks that are new, or that have something to do and may be unknown to the deliverer.
    pub(super) added: Vec<ActiveWebhook>,
}

impl Pending {
    fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.added.is_empty()
    }
}

impl DeliveryNotifier {
    pub(super) fn notify(&self, webhooks: impl IntoIterator<Item = WebhookKey>) {
        self.update(|pending| {
            for webhook in webhooks {
                if pending.ready.len() < MAX_PENDING {
                    pending.ready.insert(webhook);
                }
            }
        });
    }

    pub(crate) fn notify_added(&self, webhook: ActiveWebhook) {
        self.update(|pending| {
            if pending.added.len() < MAX_PENDING {
                pending.added.push(webhook);
            }
        });
    }

    fn update(&self, change: impl FnOnce(&mut Pending)) {
        change(&mut self.0.pending.lock());
        self.0.changed.notify_one();
    }

    /// Waits for notifications and takes them. Cancel-safe.
    pub(super) async fn notified(&self) -> Pending {
        loop {
            let pending = self.take();
            if !pending.is_empty() {
                return pending;
            }
            self.0.changed.notified().await;
        }
    }

    pub(super) fn take(&self) -> Pending {
        mem::take(&mut self.0.pending.lock())
    }
}
