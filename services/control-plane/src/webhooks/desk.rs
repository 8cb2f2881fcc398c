//! Whose turn it is.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    time::Duration,
};

use remuda_domain::{TenantId, WebhookId};
use remuda_store::ActiveWebhook;
use tokio::time::Instant;

/// Webhooks whose turn it is at once, and how many of them may be one tenant's: whoever has receivers that are slow cannot take
/// all places.
pub(super) const PLACES: usize = 32;
const PLACES_OF_TENANT: usize = 24;
/// Webhooks that wait for their turn, or for their time. Those beyond are found again by the next look through all.
const MAX_WAITING: usize = 10_000;

/// A webhook and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Hook {
    pub(super) tenant: TenantId,
    pub(super) webhook: WebhookId,
}

impl From<&ActiveWebhook> for Hook {
    fn from(webhook: &ActiveWebhook) -> Self {
        Self { tenant: webhook.tenant, webhook: webhook.id }
    }
}

/// What follows a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing, until someone calls.
    Idle,
    /// There is more to do: at the end of the line.
    Again,
    /// There is more to do, but not before this time is over.
    In(Duration),
}

/// Keeps the lines of webhooks that have something to do: each has one turn at a time, tenants take turns, and each gets its
/// turn.
#[derive(Debug, Default)]
pub(super) struct Desk {
    /// Of each tenant who has somebody in line, and the order of these tenants.
    lines: HashMap<TenantId, VecDeque<WebhookId>>,
    tenants: VecDeque<TenantId>,
    in_line: HashSet<WebhookId>,
    /// Whose turn it is, and whether they were called meanwhile: what they have read may be older than the call.
    busy: HashMap<Hook, bool>,
    /// Whose time has not come, by their time and by themselves.
    later: BTreeSet<(Instant, Hook)>,
    waiting: HashMap<Hook, Instant>,
}

impl Desk {
    /// Puts a webhook in line, unless it has to wait: then it would only find that out again.
    pub(super) fn call(&mut self, hook: Hook) {
        if !self.waiting.contains_key(&hook) {
            self.insist(hook);
        }
    }

    /// Puts a webhook in line even though it had to wait: things have changed.
    pub(super) fn insist(&mut self, hook: Hook) {
        if let Some(at) = self.waiting.remove(&hook) {
            self.later.remove(&(at, hook));
        }
        if let Some(called) = self.busy.get_mut(&hook) {
            *called = true;
        } else if self.in_line.len() < MAX_WAITING && self.in_line.insert(hook.webhook) {
            let line = self.lines.entry(hook.tenant).or_default();
            if line.is_empty() {
                self.tenants.push_back(hook.tenant);
            }
            line.push_back(hook.webhook);
        }
    }

    /// Gives the next one its turn, if there is a place.
    pub(super) fn take(&mut self) -> Option<Hook> {
        if self.busy.len() >= PLACES {
            return None;
        }
        let has_place = |tenant: &TenantId| {
            self.busy.keys().filter(|hook| hook.tenant == *tenant).count() < PLACES_OF_TENANT
        };
        let tenant = self.tenants.remove(self.tenants.iter().position(has_place)?)?;
        let line = self.lines.get_mut(&tenant)?;
        let webhook = line.pop_front()?;
        if line.is_empty() {
            self.lines.remove(&tenant);
        } else {
            self.tenants.push_back(tenant);
        }
        self.in_line.remove(&webhook);
        let hook = Hook { tenant, webhook };
        self.busy.insert(hook, false);
        Some(hook)
    }

    /// A turn is over.
    pub(super) fn done(&mut self, hook: Hook, next: Next, now: Instant) {
        let called = self.busy.remove(&hook).unwrap_or(false);
        match next {
            Next::In(wait) => {
                if self.later.len() < MAX_WAITING && self.later.insert((now + wait, hook)) {
                    self.waiting.insert(hook, now + wait);
                }
            }
            Next::Again => self.call(hook),
            Next::Idle if called => self.call(hook),
            Next::Idle => {}
        }
    }

    /// When somebody's time comes next.
    pub(super) fn next_time(&self) -> Option<Instant> {
        self.later.first().map(|(at, _)| *at)
    }

    /// Puts those in line whose time has come.
    pub(super) fn call_due(&mut self, now: Instant) {
        while let Some((_, hook)) = self.later.first().copied().filter(|(at, _)| *at <= now) {
            self.insist(hook);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hooks<const N: usize>() -> [Hook; N] {
        let tenant = TenantId::new();
        [(); N].map(|()| Hook { tenant, webhook: WebhookId::new() })
    }

    #[tokio::test(start_paused = true)]
    async fn everyone_gets_a_turn_and_nobody_two() {
        let (mut desk, now) = (Desk::default(), Instant::now());
        let [one, two, three] = hooks();
        for hook in [one, two, one, three] {
            desk.call(hook);
        }
        assert_eq!([desk.take(), desk.take()], [Some(one), Some(two)]);
        desk.done(one, Next::Again, now);
        assert_eq!(desk.take(), Some(three), "the others come first");
        // Called during its turn: it may have missed what it was called for.
        desk.call(two);
        assert_eq!([desk.take(), desk.take()], [Some(one), None]);
        desk.done(two, Next::Idle, now);
        assert_eq!(desk.take(), Some(two));
        for hook in [one, two, three] {
            desk.done(hook, Next::Idle, now);
        }
        assert_eq!((desk.take(), desk.next_time()), (None, None));
    }

    #[tokio::test(start_paused = true)]
    async fn no_tenant_takes_all_places() {
        let (mut desk, now) = (Desk::default(), Instant::now());
        let (many, few) = (hooks::<40>(), hooks::<2>());
        many.iter().chain(&few).for_each(|hook| desk.call(*hook));
        // Tenants take turns.
        assert_eq!([desk.take(), desk.take(), desk.take()], [many[0], few[0], many[1]].map(Some));
        let taken: Vec<Hook> = std::iter::from_fn(|| desk.take()).collect();
        assert_eq!(taken.iter().filter(|hook| hook.tenant == few[0].tenant).count(), 1);
        assert_eq!(taken.len() + 3, PLACES_OF_TENANT + 2);
        let others = hooks::<20>();
        others.iter().for_each(|hook| desk.call(*hook));
        assert_eq!(std::iter::from_fn(|| desk.take()).count(), PLACES - PLACES_OF_TENANT - 2);
        desk.done(many[0], Next::Idle, now);
        assert_eq!(desk.take(), Some(many[PLACES_OF_TENANT]));
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_wait_come_back_in_time() {
        let (mut desk, now) = (Desk::default(), Instant::now());
        let [one, two] = hooks();
        for (hook, seconds) in [(one, 5), (two, 2)] {
            desk.call(hook);
            assert_eq!(desk.take(), Some(hook));
            desk.done(hook, Next::In(Duration::from_secs(seconds)), now);
        }
        let at = |seconds| now + Duration::from_secs(seconds);
        assert_eq!(desk.next_time(), Some(at(2)));
        desk.call_due(at(1));
        desk.call(one);
        assert_eq!(desk.take(), None, "its time will come");
        desk.call_due(at(3));
        assert_eq!((desk.take(), desk.take(), desk.next_time()), (Some(two), None, Some(at(5))));
        desk.insist(one);
        assert_eq!((desk.take(), desk.next_time()), (Some(one), None));
    }
}
