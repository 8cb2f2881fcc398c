//! Live event subscriptions for the sessions that have webhooks.

use std::{collections::HashMap, sync::Arc, time::Duration};

use remuda_domain::{Event, SessionId, TenantId};
use remuda_store::ActiveWebhook;
use remuda_transport::Transport;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use super::{notifier::DeliveryNotifier, scheduler::WebhookKey};

/// Sessions with a subscription. The scan finds events for webhooks of other sessions.
const MAX_SESSIONS: usize = 2000;
/// Webhooks in all of these sessions.
pub(super) const MAX_WEBHOOKS: usize = 10_000;
/// Pause before an unreachable transport is tried again.
const RETRY: Duration = Duration::from_millis(500);

/// Keeps one subscription for every session with webhooks, and notifies the deliverer of those that match an event. The
/// subscriptions end when this is dropped.
pub(super) struct SessionListeners {
    transport: Arc<dyn Transport>,
    notifier: DeliveryNotifier,
    tasks: TaskTracker,
    sessions: HashMap<SessionId, watch::Sender<Vec<ActiveWebhook>>>,
}

impl SessionListeners {
    pub(super) fn new(transport: Arc<dyn Transport>, notifier: DeliveryNotifier, tasks: TaskTracker) -> Self {
        Self { transport, notifier, tasks, sessions: HashMap::new() }
    }

    /// Adds or replaces one webhook.
    pub(super) fn add(&mut self, webhook: ActiveWebhook) {
        if let Some(known) = self.sessions.get(&webhook.session) {
            known.send_modify(|known| {
                known.retain(|it| it.id != webhook.id);
                known.push(webhook);
            });
        } else if self.sessions.len() < MAX_SESSIONS {
            self.open(webhook.tenant, webhook.session, vec![webhook]);
        }
    }

    /// Replaces all webhooks. Sessions without any are unsubscribed.
    pub(super) fn set(&mut self, webhooks: Vec<ActiveWebhook>) {
        let mut by_session: HashMap<SessionId, Vec<ActiveWebhook>> = HashMap::new();
        for webhook in webhooks {
            if by_session.len() < MAX_SESSIONS || by_session.contains_key(&webhook.session) {
                by_session.entry(webhook.session).or_default().push(webhook);
            }
        }
        self.sessions.retain(|session, _| by_session.contains_key(session));
        for (session, webhooks) in by_session {
            match self.sessions.get(&session) {
                Some(known) => drop(known.send_replace(webhooks)),
                None => {
                    if let Some(tenant) = webhooks.first().map(|webhook| webhook.tenant) {
                        self.open(tenant, session, webhooks);
                    }
                }
            }
        }
    }

    fn open(&mut self, tenant: TenantId, session: SessionId, webhooks: Vec<ActiveWebhook>) {
        let (sender, known) = watch::channel(webhooks);
        let (transport, notifier) = (Arc::clone(&self.transport), self.notifier.clone());
        self.tasks.spawn(async move { listen(transport.as_ref(), &notifier, tenant, session, known).await });
        self.sessions.insert(session, sender);
    }
}

/// Notifies of matching events until the session's webhooks are dropped.
async fn listen(
    transport: &dyn Transport,
    notifier: &DeliveryNotifier,
    tenant: TenantId,
    session: SessionId,
    mut known: watch::Receiver<Vec<ActiveWebhook>>,
) {
    let dropped = known.clone();
    let follow = async {
        loop {
            if let Ok(mut live) = transport.subscribe_events(tenant, session).await {
                // Events before the subscription have to be read from the store.
                notifier.notify(known.borrow_and_update().iter().map(WebhookKey::from));
                while let Some(events) = live.next().await {
                    let known = known.borrow_and_update();
                    match events.is_empty() {
                        // Not proven: any event may have been written.
                        true => notifier.notify(known.iter().map(WebhookKey::from)),
                        false => notifier.notify(matching(&known, &events)),
                    }
                }
            }
            tokio::time::sleep(RETRY).await;
        }
    };
    tokio::select! {
        () = closed(dropped) => {}
        () = follow => {}
    }
}

async fn closed(mut known: watch::Receiver<Vec<ActiveWebhook>>) {
    while known.changed().await.is_ok() {}
}

/// The webhooks that match at least one of these events.
fn matching(webhooks: &[ActiveWebhook], events: &[Event]) -> Vec<WebhookKey> {
    let matches = |webhook: &ActiveWebhook| {
        let of_run = |event: &&Event| webhook.run.is_none() || event.run == webhook.run;
        events.iter().filter(of_run).any(|event| webhook.types.wants(event.body.name()))
    };
    webhooks.iter().filter(|webhook| matches(webhook)).map(WebhookKey::from).collect()
}

#[cfg(test)]
mod tests {
    use remuda_domain::{EventBody, EventId, RunId, Timestamp, WebhookId, webhook::EventFilter};

    use super::*;

    #[test]
    fn only_webhooks_that_match_an_event_are_notified() {
        let (session, run) = (SessionId::new(), RunId::new());
        let event = |run, body| Event {
            id: EventId::new(),
            cursor: 1,
            session,
            run,
            at: Timestamp::UNIX_EPOCH,
            body,
        };
        let webhook = |run, types: &[&str]| ActiveWebhook {
            id: WebhookId::new(),
            tenant: TenantId::new(),
            session,
            run,
            types: EventFilter::new(types.iter().map(|&name| name.to_owned()).collect()).unwrap(),
            due: false,
        };
        let all = [webhook(None, &[]), webhook(None, &["run.completed"]), webhook(Some(run), &[])];
        let matched = |event| {
            let found = matching(&all, &[event]);
            all.iter().map(|webhook| found.contains(&WebhookKey::from(webhook))).collect::<Vec<_>>()
        };
        assert_eq!(matched(event(Some(run), EventBody::RunCompleted)), [true, true, true]);
        assert_eq!(matched(event(Some(run), EventBody::RunResumed)), [true, false, true]);
        assert_eq!(matched(event(None, EventBody::SessionUpdated)), [true, false, false]);
        assert_eq!(matched(event(Some(RunId::new()), EventBody::RunCompleted)), [true, true, false]);
    }
}
