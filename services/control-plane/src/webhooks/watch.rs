//! Listening to the sessions that have webhooks.

use std::{collections::HashMap, sync::Arc, time::Duration};

use remuda_domain::{Event, SessionId, TenantId};
use remuda_store::ActiveWebhook;
use remuda_transport::Transport;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use super::{bell::Bell, desk::Hook};

/// Sessions that are listened to. Webhooks of others hear of events when all are looked through.
const MAX_SESSIONS: usize = 2000;
/// Webhooks that are listened for, in all of them.
pub(super) const MAX_HEARD: usize = 10_000;
/// How often a transport that is away is tried.
const RETRY: Duration = Duration::from_millis(500);

/// Keeps one live subscription for every session with webhooks, and rings when one of them wants what happened. All end when
/// this is dropped.
pub(super) struct Watch {
    transport: Arc<dyn Transport>,
    bell: Bell,
    tasks: TaskTracker,
    sessions: HashMap<SessionId, watch::Sender<Vec<ActiveWebhook>>>,
}

impl Watch {
    pub(super) fn new(transport: Arc<dyn Transport>, bell: Bell, tasks: TaskTracker) -> Self {
        Self { transport, bell, tasks, sessions: HashMap::new() }
    }

    /// Listens for one more.
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

    /// Listens for these, and for nobody else.
    pub(super) fn set(&mut self, webhooks: Vec<ActiveWebhook>) {
        let mut wanted: HashMap<SessionId, Vec<ActiveWebhook>> = HashMap::new();
        for webhook in webhooks {
            if wanted.len() < MAX_SESSIONS || wanted.contains_key(&webhook.session) {
                wanted.entry(webhook.session).or_default().push(webhook);
            }
        }
        self.sessions.retain(|session, _| wanted.contains_key(session));
        for (session, webhooks) in wanted {
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
        let (transport, bell) = (Arc::clone(&self.transport), self.bell.clone());
        self.tasks.spawn(async move { listen(transport.as_ref(), &bell, tenant, session, known).await });
        self.sessions.insert(session, sender);
    }
}

/// Rings for what is heard, until nobody wants to know.
async fn listen(
    transport: &dyn Transport,
    bell: &Bell,
    tenant: TenantId,
    session: SessionId,
    mut known: watch::Receiver<Vec<ActiveWebhook>>,
) {
    let unwanted = known.clone();
    let follow = async {
        loop {
            if let Ok(mut live) = transport.subscribe_events(tenant, session).await {
                // Whatever happened before is to be looked for.
                bell.call(known.borrow_and_update().iter().map(Hook::from));
                while let Some(events) = live.next().await {
                    bell.call(wanting(&known.borrow_and_update(), &events));
                }
            }
            tokio::time::sleep(RETRY).await;
        }
    };
    tokio::select! {
        () = closed(unwanted) => {}
        () = follow => {}
    }
}

async fn closed(mut known: watch::Receiver<Vec<ActiveWebhook>>) {
    while known.changed().await.is_ok() {}
}

/// Who wants to be told of at least one of these.
fn wanting(webhooks: &[ActiveWebhook], events: &[Event]) -> Vec<Hook> {
    let wants = |webhook: &ActiveWebhook| {
        let of_it = |event: &&Event| webhook.run.is_none() || event.run == webhook.run;
        events.iter().filter(of_it).any(|event| webhook.types.wants(event.body.name()))
    };
    webhooks.iter().filter(|webhook| wants(webhook)).map(Hook::from).collect()
}

#[cfg(test)]
mod tests {
    use remuda_domain::{EventBody, EventId, RunId, Timestamp, WebhookId, webhook::EventFilter};

    use super::*;

    #[test]
    fn only_those_who_want_it_are_called() {
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
        let called = |event| {
            let called = wanting(&all, &[event]);
            all.iter().map(|webhook| called.contains(&Hook::from(webhook))).collect::<Vec<_>>()
        };
        assert_eq!(called(event(Some(run), EventBody::RunCompleted)), [true, true, true]);
        assert_eq!(called(event(Some(run), EventBody::RunResumed)), [true, false, true]);
        assert_eq!(called(event(None, EventBody::SessionUpdated)), [true, false, false]);
        assert_eq!(called(event(Some(RunId::new()), EventBody::RunCompleted)), [true, true, false]);
    }
}
