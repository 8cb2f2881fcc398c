//! Decides which webhook is delivered to next.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    time::Duration,
};

use remuda_domain::{TenantId, WebhookId};
use remuda_store::ActiveWebhook;
use tokio::time::Instant;

/// Concurrent delivery passes in all, and of one tenant: a tenant with slow receivers cannot take all of them.
pub(super) const MAX_PASSES: usize = 32;
const MAX_PASSES_OF_TENANT: usize = 24;
/// Webhooks that may be queued, and that may be delayed. The next scan finds the others again.
const MAX_QUEUED: usize = 10_000;

/// A webhook and its tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct WebhookKey {
    pub(super) tenant: TenantId,
    pub(super) webhook: WebhookId,
}

impl From<&ActiveWebhook> for WebhookKey {
    fn from(webhook: &ActiveWebhook) -> Self {
        Self { tenant: webhook.tenant, webhook: webhook.id }
    }
}

/// When the next pass of a webhook is due, as decided by the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextPass {
    /// When the webhook is enqueued again.
    WhenNotified,
    /// As soon as possible, behind the webhooks that are queued.
    Now,
    /// After this delay.
    After(Duration),
}

/// Queues of webhooks with something to deliver.
///
/// A webhook has one pass at a time. Tenants are served round robin, and every queued webhook gets its pass.
#[derive(Debug, Default)]
pub(super) struct Scheduler {
    /// One queue for each tenant that has queued webhooks, and the order of these tenants.
    queues: HashMap<TenantId, VecDeque<WebhookId>>,
    tenants: VecDeque<TenantId>,
    queued: HashSet<WebhookId>,
    /// Webhooks with a pass under way, and whether they were enqueued during it: the pass may have read too early.
    running: HashMap<WebhookKey, bool>,
    /// Webhooks that must not be delivered to yet, ordered by time and indexed by webhook.
    delayed: BTreeSet<(Instant, WebhookKey)>,
    delayed_until: HashMap<WebhookKey, Instant>,
}

impl Scheduler {
    /// Enqueues a webhook, unless it is delayed: its pass would only find that out again.
    pub(super) fn enqueue(&mut self, hook: WebhookKey) {
        if !self.delayed_until.contains_key(&hook) {
            self.enqueue_now(hook);
        }
    }

    /// Enqueues a webhook even if it is delayed: its state has changed.
    pub(super) fn enqueue_now(&mut self, hook: WebhookKey) {
        if let Some(at) = self.delayed_until.remove(&hook) {
            self.delayed.remove(&(at, hook));
        }
        if let Some(enqueued) = self.running.get_mut(&hook) {
            *enqueued = true;
        } else if self.queued.len() < MAX_QUEUED && self.queued.insert(hook.webhook) {
            let queue = self.queues.entry(hook.tenant).or_default();
            if queue.is_empty() {
                self.tenants.push_back(hook.tenant);
            }
            queue.push_back(hook.webhook);
        }
    }

    /// Starts the pass of the next webhook, if the limits allow one.
    pub(super) fn start_next(&mut self) -> Option<WebhookKey> {
        if self.running.len() >= MAX_PASSES {
            return None;
        }
        let may_start = |tenant: &TenantId| {
            self.running.keys().filter(|hook| hook.tenant == *tenant).count() < MAX_PASSES_OF_TENANT
        };
        let tenant = self.tenants.remove(self.tenants.iter().position(may_start)?)?;
        let queue = self.queues.get_mut(&tenant)?;
        let webhook = queue.pop_front()?;
        if queue.is_empty() {
            self.queues.remove(&tenant);
        } else {
            self.tenants.push_back(tenant);
        }
        self.queued.remove(&webhook);
        let hook = WebhookKey { tenant, webhook };
        self.running.insert(hook, false);
        Some(hook)
    }

    /// Ends a pass and schedules the next one.
    pub(super) fn finish(&mut self, hook: WebhookKey, next: NextPass, now: Instant) {
        let enqueued = self.running.remove(&hook).unwrap_or(false);
        match next {
            NextPass::After(wait) => {
                if self.delayed.len() < MAX_QUEUED && self.delayed.insert((now + wait, hook)) {
                    self.delayed_until.insert(hook, now + wait);
                }
            }
            NextPass::Now => self.enqueue(hook),
            NextPass::WhenNotified if enqueued => self.enqueue(hook),
            NextPass::WhenNotified => {}
        }
    }

    /// When the next delay ends.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.delayed.first().map(|(at, _)| *at)
    }

    /// Enqueues the webhooks whose delay is over.
    pub(super) fn enqueue_due(&mut self, now: Instant) {
        while let Some((_, hook)) = self.delayed.first().copied().filter(|(at, _)| *at <= now) {
            self.enqueue_now(hook);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hooks<const N: usize>() -> [WebhookKey; N] {
        let tenant = TenantId::new();
        [(); N].map(|()| WebhookKey { tenant, webhook: WebhookId::new() })
    }

    #[tokio::test(start_paused = true)]
    async fn every_queued_webhook_gets_one_pass_at_a_time() {
        let (mut scheduler, now) = (Scheduler::default(), Instant::now());
        let [one, two, three] = hooks();
        for hook in [one, two, one, three] {
            scheduler.enqueue(hook);
        }
        assert_eq!([scheduler.start_next(), scheduler.start_next()], [Some(one), Some(two)]);
        scheduler.finish(one, NextPass::Now, now);
        assert_eq!(scheduler.start_next(), Some(three), "the others come first");
        // Enqueued during its pass: the pass may have read too early.
        scheduler.enqueue(two);
        assert_eq!([scheduler.start_next(), scheduler.start_next()], [Some(one), None]);
        scheduler.finish(two, NextPass::WhenNotified, now);
        assert_eq!(scheduler.start_next(), Some(two));
        for hook in [one, two, three] {
            scheduler.finish(hook, NextPass::WhenNotified, now);
        }
        assert_eq!((scheduler.start_next(), scheduler.next_due()), (None, None));
    }

    #[tokio::test(start_paused = true)]
    async fn one_tenant_cannot_take_all_passes() {
        let (mut scheduler, now) = (Scheduler::default(), Instant::now());
        let (many, few) = (hooks::<40>(), hooks::<2>());
        many.iter().chain(&few).for_each(|hook| scheduler.enqueue(*hook));
        // Round robin over tenants.
        let first = [scheduler.start_next(), scheduler.start_next(), scheduler.start_next()];
        assert_eq!(first, [many[0], few[0], many[1]].map(Some));
        let started: Vec<WebhookKey> = std::iter::from_fn(|| scheduler.start_next()).collect();
        assert_eq!(started.iter().filter(|hook| hook.tenant == few[0].tenant).count(), 1);
        assert_eq!(started.len() + 3, MAX_PASSES_OF_TENANT + 2);
        let others = hooks::<20>();
        others.iter().for_each(|hook| scheduler.enqueue(*hook));
        let rest = std::iter::from_fn(|| scheduler.start_next()).count();
        assert_eq!(rest, MAX_PASSES - MAX_PASSES_OF_TENANT - 2);
        scheduler.finish(many[0], NextPass::WhenNotified, now);
        assert_eq!(scheduler.start_next(), Some(many[MAX_PASSES_OF_TENANT]));
    }

    #[tokio::test(start_paused = true)]
    async fn delayed_webhooks_are_enqueued_when_due() {
        let (mut scheduler, now) = (Scheduler::default(), Instant::now());
        let [one, two] = hooks();
        for (hook, seconds) in [(one, 5), (two, 2)] {
            scheduler.enqueue(hook);
            assert_eq!(scheduler.start_next(), Some(hook));
            scheduler.finish(hook, NextPass::After(Duration::from_secs(seconds)), now);
        }
        let at = |seconds| now + Duration::from_secs(seconds);
        assert_eq!(scheduler.next_due(), Some(at(2)));
        scheduler.enqueue_due(at(1));
        scheduler.enqueue(one);
        assert_eq!(scheduler.start_next(), None, "it is still delayed");
        scheduler.enqueue_due(at(3));
        let taken = (scheduler.start_next(), scheduler.start_next(), scheduler.next_due());
        assert_eq!(taken, (Some(two), None, Some(at(5))));
        scheduler.enqueue_now(one);
        assert_eq!((scheduler.start_next(), scheduler.next_due()), (Some(one), None));
    }
}
