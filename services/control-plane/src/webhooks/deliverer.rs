//! Gives webhooks their turns while this process leads.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt as _;
use remuda_domain::{Error, WebhookId, error::Result};
use remuda_store::Store;
use remuda_telemetry::metrics::{self, registry::WEBHOOK_DELIVERIES};
use remuda_transport::Transport;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{Instrument as _, field::Empty};

use super::{
    bell::{Bell, Calls},
    desk::{Desk, Hook, Next},
    turn::Turns,
    watch::{MAX_HEARD, Watch},
};
use crate::{app::App, reconciler::Term};

/// Webhooks read at once when all are looked through.
const PAGE: u32 = 500;
/// How long deliveries under way may go on when this process stops to lead. What is cut off is repeated by the next leader.
const DRAIN: Duration = Duration::from_secs(2);
/// The pause of a webhook after a turn that failed for a reason of ours.
const AFTER_FAULT: Duration = Duration::from_secs(1);

/// Delivers while this process leads. What it did not hear of it finds with a look through all webhooks, every `interval`.
pub(crate) struct Deliverer {
    store: Arc<dyn Store>,
    transport: Arc<dyn Transport>,
    bell: Bell,
    turns: Turns,
    term: Term,
    interval: Duration,
}

impl Deliverer {
    pub(crate) fn new(app: &App, term: Term, interval: Duration) -> Self {
        let turns = Turns {
            store: Arc::clone(app.store()),
            courier: Arc::clone(app.courier()),
            term: term.clone(),
            deliveries: metrics::counter(&WEBHOOK_DELIVERIES),
        };
        Self {
            store: Arc::clone(app.store()),
            transport: Arc::clone(app.transport()),
            bell: app.bell().clone(),
            turns,
            term,
            interval,
        }
    }

    /// Runs until `stop`.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.term.held() => {}
            }
            let listeners = TaskTracker::new();
            self.lead(&stop, &listeners).await;
            listeners.close();
            listeners.wait().await;
        }
    }

    /// Delivers until this process stops, or leads no longer.
    async fn lead(&self, stop: &CancellationToken, listeners: &TaskTracker) {
        // What was rung for before is found by the first look.
        self.bell.take();
        let mut watch = Watch::new(Arc::clone(&self.transport), self.bell.clone(), listeners.clone());
        let (mut desk, mut lanes) = (Desk::default(), JoinSet::new());
        let mut next_look = Instant::now();
        while self.term.is_held() {
            while let Some(hook) = desk.take() {
                let turns = self.turns.clone();
                let Hook { tenant, webhook } = hook;
                let span = tracing::error_span!("webhook", %tenant, %webhook, session = Empty, run = Empty);
                lanes.spawn(async move { (hook, guarded(&turns, webhook).await) }.instrument(span));
            }
            let next_time = desk.next_time().map_or(next_look, |at| at.min(next_look));
            tokio::select! {
                () = stop.cancelled() => break,
                Some(done) = lanes.join_next() => {
                    if let Ok((hook, outcome)) = done {
                        desk.done(hook, judged(hook.webhook, outcome), Instant::now());
                    }
                }
                calls = self.bell.heard() => answer(calls, &mut desk, &mut watch),
                () = sleep_until(next_time) => {
                    desk.call_due(Instant::now());
                    if next_look <= Instant::now() {
                        if let Err(error) = self.look(&mut desk, &mut watch).await {
                            tracing::warn!(error = error.chain(), "webhooks could not be looked through");
                        }
                        next_look = Instant::now() + self.interval;
                    }
                }
            }
        }
        drop(watch);
        let rest = async { while lanes.join_next().await.is_some() {} };
        if timeout(DRAIN, rest).await.is_err() {
            lanes.shutdown().await;
        }
    }

    /// Looks through all webhooks: who has something to do, and whom to listen for.
    async fn look(&self, desk: &mut Desk, watch: &mut Watch) -> Result<()> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let page = self.store.active_webhooks(after, PAGE).await?;
            after = page.last().map(|webhook| webhook.id);
            let is_last = page.len() < PAGE as usize;
            page.iter().filter(|webhook| webhook.due).for_each(|webhook| desk.insist(webhook.into()));
            let room = MAX_HEARD.saturating_sub(all.len());
            all.extend(page.into_iter().take(room));
            if is_last {
                break;
            }
        }
        watch.set(all);
        for webhook in self.store.wanted_redeliveries(PAGE).await? {
            desk.insist(Hook::from(&webhook));
        }
        Ok(())
    }
}

fn answer(calls: Calls, desk: &mut Desk, watch: &mut Watch) {
    for webhook in calls.added {
        desk.insist(Hook::from(&webhook));
        watch.add(webhook);
    }
    for hook in calls.called {
        desk.call(hook);
    }
}

/// A turn that panics is a turn that failed: its webhook must not be taken for busy for ever.
async fn guarded(turns: &Turns, webhook: WebhookId) -> Result<Next> {
    let turn = AssertUnwindSafe(turns.take(webhook)).catch_unwind().await;
    turn.unwrap_or_else(|_| Err(Error::internal("the turn panicked")))
}

/// A turn that failed for a reason of ours is taken again, a little later.
fn judged(webhook: WebhookId, outcome: Result<Next>) -> Next {
    outcome.unwrap_or_else(|error| {
        tracing::warn!(%webhook, error = error.chain(), "a webhook's turn failed");
        Next::In(AFTER_FAULT)
    })
}
