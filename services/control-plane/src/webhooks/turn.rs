//! One webhook's turn: some of what it is to be told, in order.

use std::{sync::Arc, time::Duration};

use remuda_domain::{
    Code, Cursor, Event, WebhookId,
    error::Result,
    webhook::{DeadLetter, Webhook, WebhookState, delivery_id},
};
use remuda_egress::Way;
use remuda_store::{DeliveryOutcome, DeliveryReport, DeliveryWork, Passage, Store};
use remuda_telemetry::metrics::{Counter, KeyValue, registry::label};
use tokio::time::Instant;
use tracing::{Span, field::display};

use super::{
    body,
    courier::{Answer, Courier, Parcel},
    desk::Next,
};
use crate::reconciler::Term;

/// Events read at once.
const BATCH: usize = 64;
/// After so many reads, or this time, others come first.
const MAX_READS: usize = 64;
const LONGEST: Duration = Duration::from_secs(5);

/// What a turn needs. Cheap to clone.
#[derive(Clone)]
pub(super) struct Turns {
    pub(super) store: Arc<dyn Store>,
    pub(super) courier: Arc<Courier>,
    pub(super) term: Term,
    pub(super) deliveries: Counter<u64>,
}

/// A turn under way.
struct Turn<'a> {
    turns: &'a Turns,
    work: DeliveryWork,
    /// Where it stands, as the store knows.
    cursor: Cursor,
    /// What was read beyond that, and not wanted. It is written with what follows it, or at the end.
    passed: Cursor,
    attempts: u32,
    way: Option<Way>,
    until: Instant,
}

/// What came of one event.
enum Step {
    /// Go on with the next.
    On,
    /// The turn is over.
    Over(Next),
}

impl Turns {
    /// Delivers what can be delivered now.
    pub(super) async fn take(&self, webhook: WebhookId) -> Result<Next> {
        let Some(work) = self.store.delivery_work(webhook).await? else { return Ok(Next::Idle) };
        let span = Span::current();
        span.record("session", display(work.webhook.session));
        work.webhook.run.map(|run| span.record("run", display(run)));
        let (cursor, attempts) = (work.webhook.cursor, work.webhook.attempts);
        let until = Instant::now() + LONGEST;
        let mut turn = Turn { turns: self, work, cursor, passed: cursor, attempts, way: None, until };
        let redelivered = match turn.work.redelivery.take() {
            Some(letter) => turn.redeliver(&letter).await?,
            None => Next::Idle,
        };
        let advanced = turn.advance().await?;
        Ok(sooner(redelivered, advanced))
    }

    fn count(&self, result: &'static str) {
        self.deliveries.add(1, &[KeyValue::new(label::RESULT, result)]);
    }
}

fn sooner(one: Next, other: Next) -> Next {
    match (one, other) {
        (Next::Again, _) | (_, Next::Again) => Next::Again,
        (Next::In(one), Next::In(other)) => Next::In(one.min(other)),
        (Next::In(wait), Next::Idle) | (Next::Idle, Next::In(wait)) => Next::In(wait),
        (Next::Idle, Next::Idle) => Next::Idle,
    }
}

impl Turn<'_> {
    fn webhook(&self) -> &Webhook {
        &self.work.webhook
    }

    /// Writes what happened. False: someone else has moved the webhook, or it is gone.
    async fn report(&self, outcome: DeliveryOutcome) -> Result<bool> {
        let report = DeliveryReport { webhook: self.work.webhook.id, outcome };
        self.turns.store.report_delivery(&report).await
    }

    async fn send(&mut self, event: &Event) -> Result<Answer> {
        let webhook = &self.work.webhook;
        let id = delivery_id(webhook.id, event.id);
        let parcel = Parcel { id, body: body::of(event)?, secrets: &self.work.secrets };
        let answer = self.turns.courier.deliver(&webhook.url, &mut self.way, &parcel).await;
        if !matches!(answer, Answer::Accepted { .. }) {
            // The next attempt looks the name up anew.
            self.way = None;
        }
        Ok(answer)
    }

    async fn redeliver(&mut self, letter: &DeadLetter) -> Result<Next> {
        // Another control plane may lead by now.
        if !self.turns.term.is_held() {
            return Ok(Next::Idle);
        }
        let place = letter.event.cursor;
        match self.send(&letter.event).await? {
            Answer::Accepted { .. } => {
                self.turns.count("delivered");
                self.report(DeliveryOutcome::Redelivered { letter: place }).await?;
                // There may be more of them.
                Ok(Next::Again)
            }
            Answer::Gone(failure) => {
                self.turns.count("gone");
                self.report(DeliveryOutcome::Gone { at: self.cursor, failure }).await?;
                self.work.webhook.state = WebhookState::Disabled;
                Ok(Next::Idle)
            }
            Answer::Failed { failure, retry_after } => {
                let attempts = letter.attempts + 1;
                let courier = &self.turns.courier;
                let retry_in =
                    (attempts < courier.max_attempts).then(|| courier.pause(attempts, retry_after));
                self.turns.count(if retry_in.is_some() { "failed" } else { "dead" });
                self.report(DeliveryOutcome::RedeliveryFailed { letter: place, attempts, failure, retry_in })
                    .await?;
                // The others that are wanted are found by the next look: a receiver that is down is not asked for each of
                // them at once.
                Ok(Next::Idle)
            }
        }
    }

    /// Goes on from where the webhook stands.
    async fn advance(&mut self) -> Result<Next> {
        if self.webhook().state != WebhookState::Active {
            return Ok(Next::Idle);
        }
        if !self.work.wait.is_zero() {
            return Ok(Next::In(self.work.wait));
        }
        let mut heard_of_run = false;
        for _ in 0..MAX_READS {
            let (tenant, session) = (self.webhook().tenant, self.webhook().session);
            let read = self.turns.store.read_events(tenant, session, self.passed, BATCH).await;
            let slice = match read {
                Err(error) if error.code() == Code::SessionNotFound => return Ok(Next::Idle),
                other => other?,
            };
            if slice.events.is_empty() {
                return self.at_the_end(slice.last_cursor, heard_of_run).await;
            }
            for event in &slice.events {
                let is_of_it = self.webhook().run.is_none_or(|run| event.run == Some(run));
                if is_of_it && let Step::Over(next) = self.step(event).await? {
                    return Ok(next);
                }
                heard_of_run |= is_of_it;
                self.passed = event.cursor;
            }
            if Instant::now() >= self.until {
                break;
            }
        }
        self.note_passed().await?;
        Ok(Next::Again)
    }

    /// Writes what was passed over. False: someone else has moved the webhook, or it is gone.
    async fn note_passed(&mut self) -> Result<bool> {
        if self.passed > self.cursor { self.pass(self.passed, false, false).await } else { Ok(true) }
    }

    /// Moves the webhook on.
    async fn pass(&mut self, to: Cursor, ended: bool, delivered: bool) -> Result<bool> {
        let way = Passage { from: self.cursor, to, ended };
        let moved = self.report(DeliveryOutcome::Passed { way, delivered }).await?;
        (self.cursor, self.passed, self.attempts) = (to, to, 0);
        Ok(moved)
    }

    /// Deals with the next event of its run or session.
    async fn step(&mut self, event: &Event) -> Result<Step> {
        let is_last = self.webhook().run.is_some() && event.body.terminal_state().is_some();
        if !self.webhook().types.wants(event.body.name()) {
            if !is_last {
                return Ok(Step::On);
            }
            self.pass(event.cursor, true, false).await?;
            return Ok(Step::Over(Next::Idle));
        }
        // Another control plane may lead by now.
        if !self.turns.term.is_held() {
            return Ok(Step::Over(Next::Idle));
        }
        let over = match self.send(event).await? {
            Answer::Accepted { .. } => {
                self.turns.count("delivered");
                !self.pass(event.cursor, is_last, true).await?
            }
            Answer::Gone(failure) => {
                self.turns.count("gone");
                tracing::info!(webhook = %self.webhook().id, "a webhook's receiver is gone; it is disabled");
                self.report(DeliveryOutcome::Gone { at: self.cursor, failure }).await?;
                return Ok(Step::Over(Next::Idle));
            }
            Answer::Failed { failure, retry_after } => {
                let attempts = self.attempts + 1;
                if attempts < self.turns.courier.max_attempts {
                    self.turns.count("failed");
                    // The next attempt need not read it all again.
                    if !self.note_passed().await? {
                        return Ok(Step::Over(Next::Again));
                    }
                    let retry_in = self.turns.courier.pause(attempts, retry_after);
                    let (at, attempts_before) = (self.cursor, self.attempts);
                    let failed = DeliveryOutcome::Failed { at, attempts_before, failure, retry_in };
                    let noted = self.report(failed).await?;
                    return Ok(Step::Over(if noted { Next::In(retry_in) } else { Next::Again }));
                }
                self.turns.count("dead");
                let way = Passage { from: self.cursor, to: event.cursor, ended: is_last };
                let event = Box::new(event.clone());
                let buried = self.report(DeliveryOutcome::Died { way, event, attempts, failure }).await?;
                (self.cursor, self.passed, self.attempts) = (way.to, way.to, 0);
                !buried
            }
        };
        Ok(match (over, is_last) {
            // Someone else has moved it: what was read here is no longer the truth.
            (true, _) => Step::Over(Next::Again),
            (false, true) => Step::Over(Next::Idle),
            (false, false) if Instant::now() >= self.until => Step::Over(Next::Again),
            (false, false) => Step::On,
        })
    }

    /// Everything was read. `last` is where the stream ends.
    async fn at_the_end(&mut self, last: Cursor, heard_of_run: bool) -> Result<Next> {
        // What lies behind the last event that could be read is not kept any more.
        self.passed = self.passed.max(last);
        self.note_passed().await?;
        let Some(run) = self.webhook().run.filter(|_| !heard_of_run) else { return Ok(Next::Idle) };
        // The end of a run may be among what is not kept, and so may the run itself.
        let (tenant, session) = (self.webhook().tenant, self.webhook().session);
        match self.turns.store.get_run(tenant, run).await {
            Ok(run) if !run.state.is_terminal() => return Ok(Next::Idle),
            Err(error) if error.code() != Code::RunNotFound => return Err(error),
            _ => {}
        }
        // It may also have come in between.
        if !self.turns.store.read_events(tenant, session, self.cursor, 1).await?.events.is_empty() {
            return Ok(Next::Again);
        }
        self.pass(self.cursor, true, false).await?;
        Ok(Next::Idle)
    }
}
