//! Runs delivery passes for webhooks while this process leads.

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
    delivery_pass::DeliveryWorker,
    notifier::{DeliveryNotifier, Pending},
    scheduler::{NextPass, Scheduler, WebhookKey},
    session_listeners::{MAX_WEBHOOKS, SessionListeners},
};
use crate::{app::App, reconciler::Term};

/// Page size of a scan over all webhooks.
const PAGE: u32 = 500;
/// How long passes under way may go on when this process stops leading. The next leader repeats what is cut off.
const DRAIN: Duration = Duration::from_secs(2);
/// Delay of a webhook after a pass that failed with an internal error.
const RETRY_AFTER_ERROR: Duration = Duration::from_secs(1);

/// Delivers while this process leads. Every `interval` it scans all webhooks for events that it was not notified of.
pub(crate) struct Deliverer {
    store: Arc<dyn Store>,
    transport: Arc<dyn Transport>,
    notifier: DeliveryNotifier,
    worker: DeliveryWorker,
    term: Term,
    interval: Duration,
}

impl Deliverer {
    pub(crate) fn new(app: &App, term: Term, interval: Duration) -> Self {
        let worker = DeliveryWorker {
            store: Arc::clone(app.store()),
            sender: Arc::clone(app.webhook_sender()),
            term: term.clone(),
            deliveries: metrics::counter(&WEBHOOK_DELIVERIES),
        };
        Self {
            store: Arc::clone(app.store()),
            transport: Arc::clone(app.transport()),
            notifier: app.delivery_notifier().clone(),
            worker,
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
            let tasks = TaskTracker::new();
            self.lead(&stop, &tasks).await;
            tasks.close();
            tasks.wait().await;
        }
    }

    /// Delivers until this process stops, or no longer leads.
    async fn lead(&self, stop: &CancellationToken, tasks: &TaskTracker) {
        // The first scan covers earlier notifications.
        self.notifier.take();
        let mut listeners =
            SessionListeners::new(Arc::clone(&self.transport), self.notifier.clone(), tasks.clone());
        let (mut scheduler, mut passes) = (Scheduler::default(), JoinSet::new());
        let mut next_scan = Instant::now();
        while self.term.is_held() {
            while let Some(hook) = scheduler.start_next() {
                let worker = self.worker.clone();
                let WebhookKey { tenant, webhook } = hook;
                let span = tracing::error_span!("webhook", %tenant, %webhook, session = Empty, run = Empty);
                passes.spawn(async move { (hook, run_pass(&worker, webhook).await) }.instrument(span));
            }
            let wake_at = scheduler.next_due().map_or(next_scan, |at| at.min(next_scan));
            tokio::select! {
                () = stop.cancelled() => break,
                Some(joined) = passes.join_next() => {
                    if let Ok((hook, outcome)) = joined {
                        scheduler.finish(hook, next_pass(hook.webhook, outcome), Instant::now());
                    }
                }
                pending = self.notifier.notified() => enqueue(pending, &mut scheduler, &mut listeners),
                () = sleep_until(wake_at) => {
                    scheduler.enqueue_due(Instant::now());
                    if next_scan <= Instant::now() {
                        if let Err(error) = self.scan(&mut scheduler, &mut listeners).await {
                            tracing::warn!(error = error.chain(), "webhook scan failed; retrying at the next interval");
                        }
                        next_scan = Instant::now() + self.interval;
                    }
                }
            }
        }
        drop(listeners);
        let rest = async { while passes.join_next().await.is_some() {} };
        if timeout(DRAIN, rest).await.is_err() {
            passes.shutdown().await;
        }
    }

    /// Scans all webhooks: enqueues those with something to do and updates the listeners.
    async fn scan(&self, scheduler: &mut Scheduler, listeners: &mut SessionListeners) -> Result<()> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let page = self.store.active_webhooks(after, PAGE).await?;
            after = page.last().map(|webhook| webhook.id);
            let is_last = page.len() < PAGE as usize;
            page.iter()
                .filter(|webhook| webhook.due)
                .for_each(|webhook| scheduler.enqueue_now(webhook.into()));
            let capacity = MAX_WEBHOOKS.saturating_sub(all.len());
            all.extend(page.into_iter().take(capacity));
            if is_last {
                break;
            }
        }
        listeners.set(all);
        for webhook in self.store.due_redeliveries(PAGE).await? {
            scheduler.enqueue_now(WebhookKey::from(&webhook));
        }
        Ok(())
    }
}

fn enqueue(pending: Pending, scheduler: &mut Scheduler, listeners: &mut SessionListeners) {
    for webhook in pending.added {
        scheduler.enqueue_now(WebhookKey::from(&webhook));
        listeners.add(webhook);
    }
    for hook in pending.ready {
        scheduler.enqueue(hook);
    }
}

/// Runs a pass. A panic counts as a failure, or its webhook would stay marked as running for ever.
async fn run_pass(worker: &DeliveryWorker, webhook: WebhookId) -> Result<NextPass> {
    let pass = AssertUnwindSafe(worker.run_pass(webhook)).catch_unwind().await;
    pass.unwrap_or_else(|_| Err(Error::internal("the delivery pass panicked")))
}

/// When the next pass is due. A pass that failed with an internal error is repeated soon.
fn next_pass(webhook: WebhookId, outcome: Result<NextPass>) -> NextPass {
    outcome.unwrap_or_else(|error| {
        tracing::warn!(%webhook, error = error.chain(), "delivery pass failed; retrying");
        NextPass::After(RETRY_AFTER_ERROR)
    })
}
