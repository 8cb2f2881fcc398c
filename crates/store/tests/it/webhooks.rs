//! Webhooks and dead letters.

use std::time::Duration;

use anyhow::{Context as _, Result};
use remuda_domain::{
    Code, Cursor, DeliveryId, Event, RunId, SessionId, WebhookId,
    limits::{MAX_DEAD_LETTERS, MAX_WEBHOOKS},
    webhook::{DeliveryFailure, EventFilter, Webhook, WebhookSecret, WebhookState, delivery_id},
};
use remuda_store::{
    ActiveWebhook, CursorAdvance, DeliveryOutcome, DeliveryReport, NewWebhook, PendingDelivery, WebhookTarget,
};
use remuda_testkit::wait_for;

use crate::fixture::{Fixture, PATIENCE, page, refusal};

const SOON: Duration = Duration::from_millis(50);
const LATER: Duration = Duration::from_secs(3600);

fn secret(byte: u8) -> WebhookSecret {
    WebhookSecret::from_bytes([byte; WebhookSecret::LEN])
}

fn failure(status: Option<u16>) -> DeliveryFailure {
    DeliveryFailure { status, message: "it did not work".into() }
}

fn new(fixture: &Fixture, target: WebhookTarget) -> NewWebhook {
    NewWebhook {
        id: WebhookId::new(),
        tenant: fixture.tenant,
        target,
        url: "https://example.org/hook".into(),
        types: EventFilter::default(),
        secret: secret(1),
    }
}

impl Fixture {
    async fn webhook(&self, session: SessionId) -> Result<Webhook> {
        Ok(self.store.create_webhook(&new(self, WebhookTarget::Session(session))).await?)
    }

    async fn get(&self, webhook: WebhookId) -> Result<Webhook> {
        Ok(self.store.get_webhook(self.tenant, webhook).await?)
    }

    async fn report(&self, webhook: WebhookId, outcome: DeliveryOutcome) -> Result<bool> {
        Ok(self.store.report_delivery(&DeliveryReport { webhook, outcome }).await?)
    }

    async fn pending(&self, webhook: WebhookId) -> Result<PendingDelivery> {
        self.store.pending_delivery(webhook).await?.context("nothing to do")
    }

    async fn is_due(&self, webhook: WebhookId) -> Result<Option<bool>> {
        let active = self.store.active_webhooks(None, 1000).await?;
        Ok(active.iter().find(|it| it.id == webhook).map(|it| it.due))
    }

    /// Dead-letters these events, one after the other.
    async fn dead_letter(&self, webhook: &Webhook, events: &[Event]) -> Result<()> {
        let mut from = self.get(webhook.id).await?.cursor;
        for event in events {
            let advance = CursorAdvance { from, to: event.cursor, ended: false };
            let event = Box::new(event.clone());
            let died =
                DeliveryOutcome::DeadLettered { advance, event, attempts: 3, failure: failure(Some(500)) };
            assert!(self.report(webhook.id, died).await?);
            from = advance.to;
        }
        Ok(())
    }
}

fn advanced(from: Cursor, to: Cursor) -> DeliveryOutcome {
    DeliveryOutcome::Advanced { advance: CursorAdvance { from, to, ended: false }, delivered: true }
}

pub(crate) async fn webhook_starts_at_the_cursor_of_its_creation(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let run = fixture.submit(session).await?.run.id;
    let last = fixture.get_session(session).await?.last_cursor;
    let types = EventFilter::new(vec!["run.*".into(), "tool.failed".into()])?;
    let whole = NewWebhook { types, ..new(fixture, WebhookTarget::Session(session)) };
    let made = fixture.store.create_webhook(&whole).await?;
    assert_eq!(made, fixture.get(made.id).await?);
    assert_eq!((made.id, made.session, made.run, made.cursor), (whole.id, session, None, last));
    assert_eq!((&made.url, &made.types, made.state), (&whole.url, &whole.types, WebhookState::Active));
    let of_run = fixture.store.create_webhook(&new(fixture, WebhookTarget::Run(run))).await?;
    assert_eq!((of_run.session, of_run.run, of_run.cursor), (session, Some(run), 0));
    let listed = fixture.store.list_webhooks(fixture.tenant, Some(session), &page(10)).await?;
    assert_eq!(listed.items, [of_run.clone(), made.clone()]);
    let other = fixture.webhook(fixture.session().await?).await?;
    let first = fixture.store.list_webhooks(fixture.tenant, None, &page(2)).await?;
    assert_eq!(first.items.iter().map(|it| it.id).collect::<Vec<_>>(), [other.id, of_run.id]);
    let second = remuda_domain::page::PageRequest { size: 2, token: first.next };
    assert_eq!(
        fixture.store.list_webhooks(fixture.tenant, None, &second).await?.items,
        std::slice::from_ref(&made)
    );
    fixture.store.delete_webhook(fixture.tenant, made.id).await?;
    assert_eq!(refusal(fixture.store.get_webhook(fixture.tenant, made.id).await), Code::WebhookNotFound);
    assert_eq!(refusal(fixture.store.delete_webhook(fixture.tenant, made.id).await), Code::WebhookNotFound);
    assert!(fixture.store.pending_delivery(made.id).await?.is_none());
    Ok(())
}

pub(crate) async fn webhooks_of_other_tenants_are_not_found(fixture: &Fixture) -> Result<()> {
    let (session, stranger) = (fixture.session().await?, fixture.stranger().await?);
    let run = fixture.submit(session).await?.run.id;
    let webhook = fixture.webhook(session).await?;
    fixture.submit(session).await?;
    fixture.dead_letter(&webhook, &fixture.events_of(session).await?[2..]).await?;
    let store = &fixture.store;
    let theirs = |of| NewWebhook { tenant: stranger, ..new(fixture, of) };
    assert_eq!(
        refusal(store.create_webhook(&theirs(WebhookTarget::Session(session))).await),
        Code::SessionNotFound
    );
    assert_eq!(refusal(store.create_webhook(&theirs(WebhookTarget::Run(run))).await), Code::RunNotFound);
    let nothing = theirs(WebhookTarget::Run(RunId::new()));
    assert_eq!(refusal(store.create_webhook(&nothing).await), Code::RunNotFound);
    let missing = Code::WebhookNotFound;
    assert_eq!(refusal(store.get_webhook(stranger, webhook.id).await), missing);
    assert_eq!(refusal(store.delete_webhook(stranger, webhook.id).await), missing);
    assert_eq!(refusal(store.enable_webhook(stranger, webhook.id, false).await), missing);
    assert_eq!(refusal(store.rotate_webhook(stranger, webhook.id, &secret(2), LATER).await), missing);
    assert_eq!(refusal(store.webhook_secrets(stranger, webhook.id).await), missing);
    assert_eq!(refusal(store.list_dead_letters(stranger, webhook.id, &page(9)).await), missing);
    assert_eq!(refusal(store.redeliver(stranger, webhook.id, None).await), missing);
    assert!(store.list_webhooks(stranger, None, &page(9)).await?.items.is_empty());
    assert!(store.list_webhooks(stranger, Some(session), &page(9)).await?.items.is_empty());
    let untouched = fixture.pending(webhook.id).await?;
    assert_eq!((untouched.secrets, untouched.redelivery), (vec![secret(1)], None));
    Ok(())
}

pub(crate) async fn number_of_webhooks_per_session_is_limited(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let run = fixture.submit(session).await?.run.id;
    let of_run = new(fixture, WebhookTarget::Run(run));
    let first = fixture.store.create_webhook(&of_run).await?;
    for _ in 1..MAX_WEBHOOKS {
        fixture.webhook(session).await?;
    }
    let more = new(fixture, WebhookTarget::Session(session));
    assert_eq!(refusal(fixture.store.create_webhook(&more).await), Code::WebhookLimit);
    // A disabled webhook counts, an ended one does not.
    fixture.store.enable_webhook(fixture.tenant, first.id, false).await?;
    assert_eq!(refusal(fixture.store.create_webhook(&more).await), Code::WebhookLimit);
    fixture.store.enable_webhook(fixture.tenant, first.id, true).await?;
    let advance = CursorAdvance { from: 0, to: 2, ended: true };
    assert!(fixture.report(first.id, DeliveryOutcome::Advanced { advance, delivered: true }).await?);
    assert_eq!(fixture.get(first.id).await?.state, WebhookState::Ended);
    assert_eq!(fixture.store.create_webhook(&more).await?.id, more.id);
    // Ended webhooks do not accumulate.
    fixture.store.delete_webhook(fixture.tenant, more.id).await?;
    for _ in 0..20 {
        let webhook = fixture.store.create_webhook(&new(fixture, WebhookTarget::Run(run))).await?;
        assert!(fixture.report(webhook.id, DeliveryOutcome::Advanced { advance, delivered: true }).await?);
    }
    let all = fixture.store.list_webhooks(fixture.tenant, Some(session), &page(100)).await?.items;
    assert_eq!(all.iter().filter(|it| it.state == WebhookState::Ended).count(), 16);
    assert_eq!(refusal(fixture.store.get_webhook(fixture.tenant, first.id).await), Code::WebhookNotFound);
    Ok(())
}

pub(crate) async fn delivery_reports_advance_the_cursor(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let webhook = fixture.webhook(session).await?;
    let start = webhook.cursor;
    assert_eq!(fixture.is_due(webhook.id).await?, Some(false));
    fixture.submit(session).await?;
    fixture.submit(session).await?;
    let active = fixture.store.active_webhooks(None, 10).await?;
    let types = EventFilter::default();
    let due = ActiveWebhook { id: webhook.id, tenant: fixture.tenant, session, run: None, types, due: true };
    assert_eq!(active, [due]);
    assert!(fixture.store.active_webhooks(Some(webhook.id), 10).await?.is_empty());
    let work = fixture.pending(webhook.id).await?;
    assert_eq!((&work.webhook, work.wait, &work.redelivery), (&webhook, Duration::ZERO, &None));
    assert_eq!(work.secrets, [secret(1)]);
    // A failure is recorded, and counts once even if reported twice.
    let failed = |before, retry_in| DeliveryOutcome::Failed {
        at: start,
        attempts_before: before,
        failure: failure(Some(503)),
        retry_in,
    };
    assert!(fixture.report(webhook.id, failed(0, LATER)).await?);
    assert!(!fixture.report(webhook.id, failed(0, LATER)).await?);
    let waiting = fixture.get(webhook.id).await?;
    assert_eq!((waiting.attempts, waiting.cursor), (1, start));
    assert_eq!(waiting.last_failure, Some(failure(Some(503))));
    assert_eq!(fixture.is_due(webhook.id).await?, Some(false));
    let wait = fixture.pending(webhook.id).await?.wait;
    assert!(wait > LATER / 2 && wait <= LATER, "{wait:?}");
    assert!(fixture.report(webhook.id, failed(1, SOON)).await?);
    wait_for("the next attempt", PATIENCE, || async {
        fixture.is_due(webhook.id).await.ok() == Some(Some(true))
    })
    .await;
    assert_eq!(fixture.pending(webhook.id).await?.wait, Duration::ZERO);
    // A success resets the failures. It also counts once.
    assert!(fixture.report(webhook.id, advanced(start, start + 1)).await?);
    assert!(!fixture.report(webhook.id, advanced(start, start + 1)).await?);
    let moved = fixture.get(webhook.id).await?;
    assert_eq!((moved.cursor, moved.attempts, moved.next_attempt_at), (start + 1, 0, None));
    assert!(moved.last_failure.is_none() && moved.delivered_at.is_some());
    assert_eq!(fixture.is_due(webhook.id).await?, Some(true));
    let advance = CursorAdvance { from: start + 1, to: start + 2, ended: false };
    assert!(fixture.report(webhook.id, DeliveryOutcome::Advanced { advance, delivered: false }).await?);
    assert_eq!(fixture.is_due(webhook.id).await?, Some(false));
    assert!(!fixture.report(WebhookId::new(), advanced(0, 1)).await?);
    Ok(())
}

pub(crate) async fn gone_receiver_disables_the_webhook(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let webhook = fixture.webhook(session).await?;
    fixture.submit(session).await?;
    let gone = DeliveryOutcome::ReceiverGone { at: webhook.cursor, failure: failure(Some(410)) };
    assert!(fixture.report(webhook.id, gone).await?);
    let disabled = fixture.get(webhook.id).await?;
    assert_eq!((disabled.state, disabled.cursor), (WebhookState::Disabled, webhook.cursor));
    assert_eq!(disabled.last_failure, Some(failure(Some(410))));
    assert_eq!(fixture.is_due(webhook.id).await?, None);
    assert!(fixture.store.pending_delivery(webhook.id).await?.is_none());
    assert_eq!(
        refusal(fixture.store.redeliver(fixture.tenant, webhook.id, None).await),
        Code::WebhookDisabled
    );
    // After it is enabled again, it continues where it stopped.
    let enabled = fixture.store.enable_webhook(fixture.tenant, webhook.id, true).await?;
    assert_eq!((enabled.state, enabled.cursor), (WebhookState::Active, webhook.cursor));
    assert!(enabled.last_failure.is_none());
    assert_eq!(fixture.is_due(webhook.id).await?, Some(true));
    Ok(())
}

pub(crate) async fn dead_letters_can_be_redelivered(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let webhook = fixture.webhook(session).await?;
    for _ in 0..3 {
        fixture.submit(session).await?;
    }
    let events = fixture.events_of(session).await?.split_off(usize::try_from(webhook.cursor)?);
    fixture.dead_letter(&webhook, &events).await?;
    let after = fixture.get(webhook.id).await?;
    assert_eq!((after.cursor, after.dead_letters, after.attempts), (events[2].cursor, 3, 0));
    assert_eq!(after.last_failure, Some(failure(Some(500))));
    let first = fixture.store.list_dead_letters(fixture.tenant, webhook.id, &page(2)).await?;
    let shown: Vec<&Event> = first.items.iter().map(|letter| &letter.event).collect();
    assert_eq!(shown, [&events[2], &events[1]]);
    let second = remuda_domain::page::PageRequest { size: 2, token: first.next };
    let second = fixture.store.list_dead_letters(fixture.tenant, webhook.id, &second).await?;
    let oldest = second.items.first().context("no second page")?;
    assert_eq!((&oldest.event, oldest.attempts, &oldest.failure), (&events[0], 3, &failure(Some(500))));
    assert_eq!((oldest.id, oldest.next_attempt_at), (delivery_id(webhook.id, events[0].id), None));
    // No redelivery is scheduled yet.
    assert!(fixture.store.due_redeliveries(9).await?.is_empty());
    assert!(fixture.pending(webhook.id).await?.redelivery.is_none());
    let unknown = fixture.store.redeliver(fixture.tenant, webhook.id, Some(DeliveryId::new())).await;
    assert_eq!(refusal(unknown), Code::DeadLetterNotFound);
    assert_eq!(fixture.store.redeliver(fixture.tenant, webhook.id, Some(first.items[1].id)).await?, 1);
    let wanted = fixture.store.due_redeliveries(9).await?;
    assert_eq!(wanted.iter().map(|it| it.id).collect::<Vec<_>>(), [webhook.id]);
    let letter = fixture.pending(webhook.id).await?.redelivery.context("no redelivery")?;
    assert_eq!((&letter.event, letter.attempts), (&events[1], 0));
    // The redelivery fails, and it is a dead letter again.
    let again = |retry_in| DeliveryOutcome::RedeliveryFailed {
        letter: events[1].cursor,
        attempts: 1,
        failure: failure(None),
        retry_in,
    };
    assert!(fixture.report(webhook.id, again(Some(LATER))).await?);
    assert!(fixture.pending(webhook.id).await?.redelivery.is_none());
    assert!(fixture.report(webhook.id, again(None)).await?);
    assert!(!fixture.report(webhook.id, again(None)).await?, "not scheduled for redelivery");
    // All of them, oldest first.
    assert_eq!(fixture.store.redeliver(fixture.tenant, webhook.id, None).await?, 3);
    for event in &events {
        let letter = fixture.pending(webhook.id).await?.redelivery.context("no redelivery")?;
        assert_eq!(&letter.event, event);
        assert!(fixture.report(webhook.id, DeliveryOutcome::Redelivered { letter: event.cursor }).await?);
        assert!(!fixture.report(webhook.id, DeliveryOutcome::Redelivered { letter: event.cursor }).await?);
    }
    assert_eq!(fixture.get(webhook.id).await?.dead_letters, 0);
    assert_eq!(fixture.store.redeliver(fixture.tenant, webhook.id, None).await?, 0);
    Ok(())
}

pub(crate) async fn oldest_dead_letters_are_dropped_at_the_limit(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let webhook = fixture.webhook(session).await?;
    fixture.submit(session).await?;
    let event = fixture.events_of(session).await?.pop().context("no event")?;
    let most = Cursor::from(MAX_DEAD_LETTERS);
    let events: Vec<Event> =
        (0..most + 2).map(|more| Event { cursor: event.cursor + more, ..event.clone() }).collect();
    fixture.dead_letter(&webhook, &events).await?;
    let after = fixture.get(webhook.id).await?;
    assert_eq!((after.dead_letters, after.dropped_dead_letters), (u64::from(MAX_DEAD_LETTERS), 2));
    let newest = fixture.store.list_dead_letters(fixture.tenant, webhook.id, &page(1)).await?;
    assert_eq!(newest.items[0].event.cursor, event.cursor + most + 1);
    Ok(())
}

pub(crate) async fn rotation_keeps_the_previous_secret_for_a_while(fixture: &Fixture) -> Result<()> {
    let webhook = fixture.webhook(fixture.session().await?).await?;
    let rotated = fixture.store.rotate_webhook(fixture.tenant, webhook.id, &secret(2), LATER).await?;
    assert!(rotated.previous_secret_until.is_some_and(|until| until > rotated.created_at));
    assert_eq!(fixture.store.webhook_secrets(fixture.tenant, webhook.id).await?, [secret(2), secret(1)]);
    assert_eq!(fixture.pending(webhook.id).await?.secrets, [secret(2), secret(1)]);
    fixture.store.rotate_webhook(fixture.tenant, webhook.id, &secret(3), SOON).await?;
    wait_for("the end of the old secret", PATIENCE, || async {
        fixture
            .store
            .webhook_secrets(fixture.tenant, webhook.id)
            .await
            .is_ok_and(|found| found == [secret(3)])
    })
    .await;
    Ok(())
}
