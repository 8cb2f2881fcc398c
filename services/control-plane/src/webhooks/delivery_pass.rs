//! A delivery pass: sends some of a webhook's pending events, in order.

use std::{sync::Arc, time::Duration};

use remuda_domain::{
    Code, Cursor, Event, WebhookId,
    error::Result,
    webhook::{DeadLetter, Webhook, WebhookState, delivery_id},
};
use remuda_egress::PinnedTarget;
use remuda_store::{CursorAdvance, DeliveryOutcome, DeliveryReport, PendingDelivery, Store};
use remuda_telemetry::metrics::{Counter, KeyValue, registry::label};
use tokio::time::Instant;
use tracing::{Span, field::display};

use super::{
    body,
    scheduler::NextPass,
    sender::{Delivery, SendOutcome, WebhookSender},
};
use crate::reconciler::Term;

/// Events per read.
const BATCH: usize = 64;
/// A pass ends after this many reads, or this time: other webhooks come first then.
const MAX_READS: usize = 64;
const MAX_DURATION: Duration = Duration::from_secs(5);

/// Runs delivery passes. Cheap to clone.
#[derive(Clone)]
pub(super) struct DeliveryWorker {
    pub(super) store: Arc<dyn Store>,
    pub(super) sender: Arc<WebhookSender>,
    pub(super) term: Term,
    pub(super) deliveries: Counter<u64>,
}

/// A pass under way.
struct DeliveryPass<'a> {
    worker: &'a DeliveryWorker,
    work: PendingDelivery,
    /// The webhook's cursor in the store.
    cursor: Cursor,
    /// Cursor of the last event that was read and skipped. It is stored with the next delivery, or at the end.
    passed: Cursor,
    attempts: u32,
    target: Option<PinnedTarget>,
    until: Instant,
}

/// Whether a pass goes on after an event.
enum Progress {
    Continue,
    Finished(NextPass),
}

impl DeliveryWorker {
    /// Delivers what can be delivered now.
    pub(super) async fn run_pass(&self, webhook: WebhookId) -> Result<NextPass> {
        let Some(work) = self.store.pending_delivery(webhook).await? else {
            return Ok(NextPass::WhenNotified);
        };
        let span = Span::current();
        span.record("session", display(work.webhook.session));
        work.webhook.run.map(|run| span.record("run", display(run)));
        let (cursor, attempts) = (work.webhook.cursor, work.webhook.attempts);
        let until = Instant::now() + MAX_DURATION;
        let mut pass =
            DeliveryPass { worker: self, work, cursor, passed: cursor, attempts, target: None, until };
        let redelivered = match pass.work.redelivery.take() {
            Some(letter) => pass.redeliver(&letter).await?,
            None => NextPass::WhenNotified,
        };
        let advanced = pass.advance().await?;
        Ok(sooner(redelivered, advanced))
    }

    fn count(&self, result: &'static str) {
        self.deliveries.add(1, &[KeyValue::new(label::RESULT, result)]);
    }
}

fn sooner(one: NextPass, other: NextPass) -> NextPass {
    match (one, other) {
        (NextPass::Now, _) | (_, NextPass::Now) => NextPass::Now,
        (NextPass::After(one), NextPass::After(other)) => NextPass::After(one.min(other)),
        (NextPass::After(wait), NextPass::WhenNotified) | (NextPass::WhenNotified, NextPass::After(wait)) => {
            NextPass::After(wait)
        }
        (NextPass::WhenNotified, NextPass::WhenNotified) => NextPass::WhenNotified,
    }
}

impl DeliveryPass<'_> {
    fn webhook(&self) -> &Webhook {
        &self.work.webhook
    }

    /// Stores an outcome. Returns false if another process has moved the webhook, or it is gone.
    async fn report(&self, outcome: DeliveryOutcome) -> Result<bool> {
        let report = DeliveryReport { webhook: self.work.webhook.id, outcome };
        self.worker.store.report_delivery(&report).await
    }

    async fn send(&mut self, event: &Event) -> Result<SendOutcome> {
        let webhook = &self.work.webhook;
        let id = delivery_id(webhook.id, event.id);
        let delivery = Delivery { id, body: body::of(event)?, secrets: &self.work.secrets };
        let outcome = self.worker.sender.send(&webhook.url, &mut self.target, &delivery).await;
        if !matches!(outcome, SendOutcome::Accepted { .. }) {
            // The next attempt resolves the host again.
            self.target = None;
        }
        Ok(outcome)
    }

    async fn redeliver(&mut self, letter: &DeadLetter) -> Result<NextPass> {
        // Another control plane may lead by now.
        if !self.worker.term.is_held() {
            return Ok(NextPass::WhenNotified);
        }
        let cursor = letter.event.cursor;
        match self.send(&letter.event).await? {
            SendOutcome::Accepted { .. } => {
                self.worker.count("delivered");
                self.report(DeliveryOutcome::Redelivered { letter: cursor }).await?;
                // There may be more dead letters to redeliver.
                Ok(NextPass::Now)
            }
            SendOutcome::Gone(failure) => {
                self.worker.count("gone");
                self.report(DeliveryOutcome::ReceiverGone { at: self.cursor, failure }).await?;
                self.work.webhook.state = WebhookState::Disabled;
                Ok(NextPass::WhenNotified)
            }
            SendOutcome::Failed { failure, retry_after } => {
                let attempts = letter.attempts + 1;
                let sender = &self.worker.sender;
                let retry_in =
                    (attempts < sender.max_attempts).then(|| sender.retry_delay(attempts, retry_after));
                self.worker.count(if retry_in.is_some() { "failed" } else { "dead" });
                self.report(DeliveryOutcome::RedeliveryFailed {
                    letter: cursor,
                    attempts,
                    failure,
                    retry_in,
                })
                .await?;
                // The next scan finds the other requested redeliveries: a receiver that is down does not get them all
                // at once.
                Ok(NextPass::WhenNotified)
            }
        }
    }

    /// Delivers the events after the webhook's cursor.
    async fn advance(&mut self) -> Result<NextPass> {
        if self.webhook().state != WebhookState::Active {
            return Ok(NextPass::WhenNotified);
        }
        if !self.work.wait.is_zero() {
            return Ok(NextPass::After(self.work.wait));
        }
        let mut saw_run = false;
        for _ in 0..MAX_READS {
            let (tenant, session) = (self.webhook().tenant, self.webhook().session);
            let read = self.worker.store.read_events(tenant, session, self.passed, BATCH).await;
            let slice = match read {
                Err(error) if error.code() == Code::SessionNotFound => return Ok(NextPass::WhenNotified),
                other => other?,
            };
            if slice.events.is_empty() {
                return self.finish_stream(slice.last_cursor, saw_run).await;
            }
            for event in &slice.events {
                let concerns_webhook = self.webhook().run.is_none_or(|run| event.run == Some(run));
                if concerns_webhook && let Progress::Finished(next) = self.handle(event).await? {
                    return Ok(next);
                }
                saw_run |= concerns_webhook;
                self.passed = event.cursor;
            }
            if Instant::now() >= self.until {
                break;
            }
        }
        self.store_passed().await?;
        Ok(NextPass::Now)
    }

    /// Stores the cursor of skipped events. Returns false if another process has moved the webhook, or it is gone.
    async fn store_passed(&mut self) -> Result<bool> {
        if self.passed > self.cursor {
            self.advance_cursor(self.passed, false, false).await
        } else {
            Ok(true)
        }
    }

    /// Moves the webhook's cursor.
    async fn advance_cursor(&mut self, to: Cursor, ended: bool, delivered: bool) -> Result<bool> {
        let advance = CursorAdvance { from: self.cursor, to, ended };
        let moved = self.report(DeliveryOutcome::Advanced { advance, delivered }).await?;
        (self.cursor, self.passed, self.attempts) = (to, to, 0);
        Ok(moved)
    }

    /// Delivers or skips the next event of the webhook's run or session.
    async fn handle(&mut self, event: &Event) -> Result<Progress> {
        let is_last = self.webhook().run.is_some() && event.body.terminal_state().is_some();
        if !self.webhook().types.wants(event.body.name()) {
            if !is_last {
                return Ok(Progress::Continue);
            }
            self.advance_cursor(event.cursor, true, false).await?;
            return Ok(Progress::Finished(NextPass::WhenNotified));
        }
        // Another control plane may lead by now.
        if !self.worker.term.is_held() {
            return Ok(Progress::Finished(NextPass::WhenNotified));
        }
        let conflict = match self.send(event).await? {
            SendOutcome::Accepted { .. } => {
                self.worker.count("delivered");
                !self.advance_cursor(event.cursor, is_last, true).await?
            }
            SendOutcome::Gone(failure) => {
                self.worker.count("gone");
                tracing::info!(webhook = %self.webhook().id, "the receiver answered 410; webhook disabled");
                self.report(DeliveryOutcome::ReceiverGone { at: self.cursor, failure }).await?;
                return Ok(Progress::Finished(NextPass::WhenNotified));
            }
            SendOutcome::Failed { failure, retry_after } => {
                let attempts = self.attempts + 1;
                if attempts < self.worker.sender.max_attempts {
                    self.worker.count("failed");
                    // The next attempt need not read the skipped events again.
                    if !self.store_passed().await? {
                        return Ok(Progress::Finished(NextPass::Now));
                    }
                    let retry_in = self.worker.sender.retry_delay(attempts, retry_after);
                    let (at, attempts_before) = (self.cursor, self.attempts);
                    let failed = DeliveryOutcome::Failed { at, attempts_before, failure, retry_in };
                    let stored = self.report(failed).await?;
                    return Ok(Progress::Finished(if stored {
                        NextPass::After(retry_in)
                    } else {
                        NextPass::Now
                    }));
                }
                self.worker.count("dead");
                let advance = CursorAdvance { from: self.cursor, to: event.cursor, ended: is_last };
                let event = Box::new(event.clone());
                let stored =
                    self.report(DeliveryOutcome::DeadLettered { advance, event, attempts, failure }).await?;
                (self.cursor, self.passed, self.attempts) = (advance.to, advance.to, 0);
                !stored
            }
        };
        Ok(match (conflict, is_last) {
            // Another process has moved the webhook: what was read here is out of date.
            (true, _) => Progress::Finished(NextPass::Now),
            (false, true) => Progress::Finished(NextPass::WhenNotified),
            (false, false) if Instant::now() >= self.until => Progress::Finished(NextPass::Now),
            (false, false) => Progress::Continue,
        })
    }

    /// Ends a pass that has read all events. `last` is the last cursor of the stream.
    async fn finish_stream(&mut self, last: Cursor, saw_run: bool) -> Result<NextPass> {
        // Events between the last one that could be read and `last` were trimmed.
        self.passed = self.passed.max(last);
        self.store_passed().await?;
        let Some(run) = self.webhook().run.filter(|_| !saw_run) else { return Ok(NextPass::WhenNotified) };
        // The run's end event may have been trimmed, and the run itself deleted.
        let (tenant, session) = (self.webhook().tenant, self.webhook().session);
        match self.worker.store.get_run(tenant, run).await {
            Ok(run) if !run.state.is_terminal() => return Ok(NextPass::WhenNotified),
            Err(error) if error.code() != Code::RunNotFound => return Err(error),
            _ => {}
        }
        // The end event may also have been written since.
        if !self.worker.store.read_events(tenant, session, self.cursor, 1).await?.events.is_empty() {
            return Ok(NextPass::Now);
        }
        self.advance_cursor(self.cursor, true, false).await?;
        Ok(NextPass::WhenNotified)
    }
}
