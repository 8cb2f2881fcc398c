//! Webhooks: durable readers with dead letters.

use std::time::Duration;

use anyhow::{Context as _, Result};
use remuda_domain::{
    Code, Cursor, DeliveryId, Event, RunId, SessionId, WebhookId,
    limits::{MAX_DEAD_LETTERS, MAX_WEBHOOKS},
    webhook::{DeliveryFailure, EventFilter, Webhook, WebhookSecret, WebhookState, delivery_id},
};
use remuda_store::{
    ActiveWebhook, DeliveryOutcome, DeliveryReport, DeliveryWork, NewWebhook, Passage, WebhookOf,
};
use remuda_testkit::wait_for;

use crate::lab::{Lab, PATIENCE, page, refusal};

const SOON: Duration = Duration::from_millis(50);
const LATER: Duration = Duration::from_secs(3600);

fn secret(byte: u8) -> WebhookSecret {
    WebhookSecret::from_bytes([byte; WebhookSecret::LEN])
}

fn failure(status: Option<u16>) -> DeliveryFailure {
    DeliveryFailure { status, message: "it did not work".into() }
}

fn new(lab: &Lab, of: WebhookOf) -> NewWebhook {
    NewWebhook {
        id: WebhookId::new(),
        tenant: lab.tenant,
        of,
        url: "https://example.org/hook".into(),
        types: EventFilter::default(),
        secret: secret(1),
    }
}

impl Lab {
    async fn webhook(&self, session: SessionId) -> Result<Webhook> {
        Ok(self.store.create_webhook(&new(self, WebhookOf::Session(session))).await?)
    }

    async fn hook(&self, webhook: WebhookId) -> Result<Webhook> {
        Ok(self.store.get_webhook(self.tenant, webhook).await?)
    }

    async fn told(&self, webhook: WebhookId, outcome: DeliveryOutcome) -> Result<bool> {
        Ok(self.store.report_delivery(&DeliveryReport { webhook, outcome }).await?)
    }

    async fn to_do(&self, webhook: WebhookId) -> Result<DeliveryWork> {
        self.store.delivery_work(webhook).await?.context("nothing to do")
    }

    async fn is_due(&self, webhook: WebhookId) -> Result<Option<bool>> {
        let active = self.store.active_webhooks(None, 1000).await?;
        Ok(active.iter().find(|it| it.id == webhook).map(|it| it.due))
    }

    /// Gives up the events of these cursors, one after the other.
    async fn bury(&self, webhook: &Webhook, events: &[Event]) -> Result<()> {
        let mut from = self.hook(webhook.id).await?.cursor;
        for event in events {
            let way = Passage { from, to: event.cursor, ended: false };
            let event = Box::new(event.clone());
            let died = DeliveryOutcome::Died { way, event, attempts: 3, failure: failure(Some(500)) };
            assert!(self.told(webhook.id, died).await?);
            from = way.to;
        }
        Ok(())
    }
}

fn passed(from: Cursor, to: Cursor) -> DeliveryOutcome {
    DeliveryOutcome::Passed { way: Passage { from, to, ended: false }, delivered: true }
}

pub(crate) async fn a_webhook_starts_where_it_is_made(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let run = lab.submit(session).await?.run.id;
    let last = lab.look(session).await?.last_cursor;
    let types = EventFilter::new(vec!["run.*".into(), "tool.failed".into()])?;
    let whole = NewWebhook { types, ..new(lab, WebhookOf::Session(session)) };
    let made = lab.store.create_webhook(&whole).await?;
    assert_eq!(made, lab.hook(made.id).await?);
    assert_eq!((made.id, made.session, made.run, made.cursor), (whole.id, session, None, last));
    assert_eq!((&made.url, &made.types, made.state), (&whole.url, &whole.types, WebhookState::Active));
    let of_run = lab.store.create_webhook(&new(lab, WebhookOf::Run(run))).await?;
    assert_eq!((of_run.session, of_run.run, of_run.cursor), (session, Some(run), 0));
    let listed = lab.store.list_webhooks(lab.tenant, Some(session), &page(10)).await?;
    assert_eq!(listed.items, [of_run.clone(), made.clone()]);
    let other = lab.webhook(lab.session().await?).await?;
    let first = lab.store.list_webhooks(lab.tenant, None, &page(2)).await?;
    assert_eq!(first.items.iter().map(|it| it.id).collect::<Vec<_>>(), [other.id, of_run.id]);
    let second = remuda_domain::page::PageRequest { size: 2, token: first.next };
    assert_eq!(lab.store.list_webhooks(lab.tenant, None, &second).await?.items, std::slice::from_ref(&made));
    lab.store.delete_webhook(lab.tenant, made.id).await?;
    assert_eq!(refusal(lab.store.get_webhook(lab.tenant, made.id).await), Code::WebhookNotFound);
    assert_eq!(refusal(lab.store.delete_webhook(lab.tenant, made.id).await), Code::WebhookNotFound);
    assert!(lab.store.delivery_work(made.id).await?.is_none());
    Ok(())
}

pub(crate) async fn other_tenants_webhooks_do_not_exist(lab: &Lab) -> Result<()> {
    let (session, stranger) = (lab.session().await?, lab.stranger().await?);
    let run = lab.submit(session).await?.run.id;
    let webhook = lab.webhook(session).await?;
    lab.submit(session).await?;
    lab.bury(&webhook, &lab.events_of(session).await?[2..]).await?;
    let store = &lab.store;
    let theirs = |of| NewWebhook { tenant: stranger, ..new(lab, of) };
    assert_eq!(
        refusal(store.create_webhook(&theirs(WebhookOf::Session(session))).await),
        Code::SessionNotFound
    );
    assert_eq!(refusal(store.create_webhook(&theirs(WebhookOf::Run(run))).await), Code::RunNotFound);
    let nothing = theirs(WebhookOf::Run(RunId::new()));
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
    let untouched = lab.to_do(webhook.id).await?;
    assert_eq!((untouched.secrets, untouched.redelivery), (vec![secret(1)], None));
    Ok(())
}

pub(crate) async fn a_session_has_only_so_many(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let run = lab.submit(session).await?.run.id;
    let of_run = new(lab, WebhookOf::Run(run));
    let first = lab.store.create_webhook(&of_run).await?;
    for _ in 1..MAX_WEBHOOKS {
        lab.webhook(session).await?;
    }
    let more = new(lab, WebhookOf::Session(session));
    assert_eq!(refusal(lab.store.create_webhook(&more).await), Code::WebhookLimit);
    // One that is disabled counts, one that is over does not.
    lab.store.enable_webhook(lab.tenant, first.id, false).await?;
    assert_eq!(refusal(lab.store.create_webhook(&more).await), Code::WebhookLimit);
    lab.store.enable_webhook(lab.tenant, first.id, true).await?;
    let way = Passage { from: 0, to: 2, ended: true };
    assert!(lab.told(first.id, DeliveryOutcome::Passed { way, delivered: true }).await?);
    assert_eq!(lab.hook(first.id).await?.state, WebhookState::Ended);
    assert_eq!(lab.store.create_webhook(&more).await?.id, more.id);
    // Those that are over do not pile up.
    lab.store.delete_webhook(lab.tenant, more.id).await?;
    for _ in 0..20 {
        let webhook = lab.store.create_webhook(&new(lab, WebhookOf::Run(run))).await?;
        assert!(lab.told(webhook.id, DeliveryOutcome::Passed { way, delivered: true }).await?);
    }
    let all = lab.store.list_webhooks(lab.tenant, Some(session), &page(100)).await?.items;
    assert_eq!(all.iter().filter(|it| it.state == WebhookState::Ended).count(), 16);
    assert_eq!(refusal(lab.store.get_webhook(lab.tenant, first.id).await), Code::WebhookNotFound);
    Ok(())
}

pub(crate) async fn deliveries_move_a_webhook_on(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let webhook = lab.webhook(session).await?;
    let start = webhook.cursor;
    assert_eq!(lab.is_due(webhook.id).await?, Some(false));
    lab.submit(session).await?;
    lab.submit(session).await?;
    let active = lab.store.active_webhooks(None, 10).await?;
    let types = EventFilter::default();
    let due = ActiveWebhook { id: webhook.id, tenant: lab.tenant, session, run: None, types, due: true };
    assert_eq!(active, [due]);
    assert!(lab.store.active_webhooks(Some(webhook.id), 10).await?.is_empty());
    let work = lab.to_do(webhook.id).await?;
    assert_eq!((&work.webhook, work.wait, &work.redelivery), (&webhook, Duration::ZERO, &None));
    assert_eq!(work.secrets, [secret(1)]);
    // A failure is remembered, and counts once whoever reports it.
    let failed = |before, retry_in| DeliveryOutcome::Failed {
        at: start,
        attempts_before: before,
        failure: failure(Some(503)),
        retry_in,
    };
    assert!(lab.told(webhook.id, failed(0, LATER)).await?);
    assert!(!lab.told(webhook.id, failed(0, LATER)).await?);
    let waiting = lab.hook(webhook.id).await?;
    assert_eq!((waiting.attempts, waiting.cursor), (1, start));
    assert_eq!(waiting.last_failure, Some(failure(Some(503))));
    assert_eq!(lab.is_due(webhook.id).await?, Some(false));
    let wait = lab.to_do(webhook.id).await?.wait;
    assert!(wait > LATER / 2 && wait <= LATER, "{wait:?}");
    assert!(lab.told(webhook.id, failed(1, SOON)).await?);
    wait_for("the next attempt", PATIENCE, || async {
        lab.is_due(webhook.id).await.ok() == Some(Some(true))
    })
    .await;
    assert_eq!(lab.to_do(webhook.id).await?.wait, Duration::ZERO);
    // A success forgets failures. It, too, counts once.
    assert!(lab.told(webhook.id, passed(start, start + 1)).await?);
    assert!(!lab.told(webhook.id, passed(start, start + 1)).await?);
    let moved = lab.hook(webhook.id).await?;
    assert_eq!((moved.cursor, moved.attempts, moved.next_attempt_at), (start + 1, 0, None));
    assert!(moved.last_failure.is_none() && moved.delivered_at.is_some());
    assert_eq!(lab.is_due(webhook.id).await?, Some(true));
    let way = Passage { from: start + 1, to: start + 2, ended: false };
    assert!(lab.told(webhook.id, DeliveryOutcome::Passed { way, delivered: false }).await?);
    assert_eq!(lab.is_due(webhook.id).await?, Some(false));
    assert!(!lab.told(WebhookId::new(), passed(0, 1)).await?);
    Ok(())
}

pub(crate) async fn a_receiver_that_is_gone_is_left_alone(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let webhook = lab.webhook(session).await?;
    lab.submit(session).await?;
    let gone = DeliveryOutcome::Gone { at: webhook.cursor, failure: failure(Some(410)) };
    assert!(lab.told(webhook.id, gone).await?);
    let disabled = lab.hook(webhook.id).await?;
    assert_eq!((disabled.state, disabled.cursor), (WebhookState::Disabled, webhook.cursor));
    assert_eq!(disabled.last_failure, Some(failure(Some(410))));
    assert_eq!(lab.is_due(webhook.id).await?, None);
    assert!(lab.store.delivery_work(webhook.id).await?.is_none());
    assert_eq!(refusal(lab.store.redeliver(lab.tenant, webhook.id, None).await), Code::WebhookDisabled);
    // Enabled again it goes on where it was.
    let enabled = lab.store.enable_webhook(lab.tenant, webhook.id, true).await?;
    assert_eq!((enabled.state, enabled.cursor), (WebhookState::Active, webhook.cursor));
    assert!(enabled.last_failure.is_none());
    assert_eq!(lab.is_due(webhook.id).await?, Some(true));
    Ok(())
}

pub(crate) async fn what_dies_can_be_delivered_again(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let webhook = lab.webhook(session).await?;
    for _ in 0..3 {
        lab.submit(session).await?;
    }
    let events = lab.events_of(session).await?.split_off(usize::try_from(webhook.cursor)?);
    lab.bury(&webhook, &events).await?;
    let after = lab.hook(webhook.id).await?;
    assert_eq!((after.cursor, after.dead_letters, after.attempts), (events[2].cursor, 3, 0));
    assert_eq!(after.last_failure, Some(failure(Some(500))));
    let first = lab.store.list_dead_letters(lab.tenant, webhook.id, &page(2)).await?;
    let shown: Vec<&Event> = first.items.iter().map(|letter| &letter.event).collect();
    assert_eq!(shown, [&events[2], &events[1]]);
    let second = remuda_domain::page::PageRequest { size: 2, token: first.next };
    let second = lab.store.list_dead_letters(lab.tenant, webhook.id, &second).await?;
    let oldest = second.items.first().context("no second page")?;
    assert_eq!((&oldest.event, oldest.attempts, &oldest.failure), (&events[0], 3, &failure(Some(500))));
    assert_eq!((oldest.id, oldest.next_attempt_at), (delivery_id(webhook.id, events[0].id), None));
    // Nobody wants them yet.
    assert!(lab.store.wanted_redeliveries(9).await?.is_empty());
    assert!(lab.to_do(webhook.id).await?.redelivery.is_none());
    let unknown = lab.store.redeliver(lab.tenant, webhook.id, Some(DeliveryId::new())).await;
    assert_eq!(refusal(unknown), Code::DeadLetterNotFound);
    assert_eq!(lab.store.redeliver(lab.tenant, webhook.id, Some(first.items[1].id)).await?, 1);
    let wanted = lab.store.wanted_redeliveries(9).await?;
    assert_eq!(wanted.iter().map(|it| it.id).collect::<Vec<_>>(), [webhook.id]);
    let letter = lab.to_do(webhook.id).await?.redelivery.context("nothing wanted")?;
    assert_eq!((&letter.event, letter.attempts), (&events[1], 0));
    // It fails, and is dead again.
    let again = |retry_in| DeliveryOutcome::RedeliveryFailed {
        letter: events[1].cursor,
        attempts: 1,
        failure: failure(None),
        retry_in,
    };
    assert!(lab.told(webhook.id, again(Some(LATER))).await?);
    assert!(lab.to_do(webhook.id).await?.redelivery.is_none());
    assert!(lab.told(webhook.id, again(None)).await?);
    assert!(!lab.told(webhook.id, again(None)).await?, "nobody wants it");
    // All of them, oldest first.
    assert_eq!(lab.store.redeliver(lab.tenant, webhook.id, None).await?, 3);
    for event in &events {
        let letter = lab.to_do(webhook.id).await?.redelivery.context("nothing wanted")?;
        assert_eq!(&letter.event, event);
        assert!(lab.told(webhook.id, DeliveryOutcome::Redelivered { letter: event.cursor }).await?);
        assert!(!lab.told(webhook.id, DeliveryOutcome::Redelivered { letter: event.cursor }).await?);
    }
    assert_eq!(lab.hook(webhook.id).await?.dead_letters, 0);
    assert_eq!(lab.store.redeliver(lab.tenant, webhook.id, None).await?, 0);
    Ok(())
}

pub(crate) async fn the_oldest_dead_letters_make_room(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let webhook = lab.webhook(session).await?;
    lab.submit(session).await?;
    let event = lab.events_of(session).await?.pop().context("no event")?;
    let most = Cursor::from(MAX_DEAD_LETTERS);
    let events: Vec<Event> =
        (0..most + 2).map(|more| Event { cursor: event.cursor + more, ..event.clone() }).collect();
    lab.bury(&webhook, &events).await?;
    let after = lab.hook(webhook.id).await?;
    assert_eq!((after.dead_letters, after.dropped_dead_letters), (u64::from(MAX_DEAD_LETTERS), 2));
    let newest = lab.store.list_dead_letters(lab.tenant, webhook.id, &page(1)).await?;
    assert_eq!(newest.items[0].event.cursor, event.cursor + most + 1);
    Ok(())
}

pub(crate) async fn secrets_change_with_a_time_for_both(lab: &Lab) -> Result<()> {
    let webhook = lab.webhook(lab.session().await?).await?;
    let rotated = lab.store.rotate_webhook(lab.tenant, webhook.id, &secret(2), LATER).await?;
    assert!(rotated.previous_secret_until.is_some_and(|until| until > rotated.created_at));
    assert_eq!(lab.store.webhook_secrets(lab.tenant, webhook.id).await?, [secret(2), secret(1)]);
    assert_eq!(lab.to_do(webhook.id).await?.secrets, [secret(2), secret(1)]);
    lab.store.rotate_webhook(lab.tenant, webhook.id, &secret(3), SOON).await?;
    wait_for("the end of the old secret", PATIENCE, || async {
        lab.store.webhook_secrets(lab.tenant, webhook.id).await.is_ok_and(|found| found == [secret(3)])
    })
    .await;
    Ok(())
}
