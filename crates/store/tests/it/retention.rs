//! Deleting what is over for long.

use std::time::Duration;

use anyhow::Result;
use remuda_domain::{
    Code, RunId, RunState, SessionId, WebhookId, budget::Limit, message::Role, webhook::WebhookSecret,
};
use remuda_store::{
    Commit, DeliveryOutcome, DeliveryReport, NewSession, NewWebhook, Options, Passage, Sweep, Trimmed,
    WebhookOf, connect,
};
use remuda_testkit::wait_for;

use crate::{
    family::{child, making, question},
    lab::{LONG_LEASE, Lab, PATIENCE, completed, ending, message, page, progress, refusal, saying, step},
    plans::{count, execute},
};

pub(crate) const NO_TIME: Duration = Duration::ZERO;
/// Longer ago than anything that a case does.
pub(crate) const HOUR: Duration = Duration::from_secs(3600);

impl Lab {
    /// Waits until everything that was done is older than no time at all: ids know milliseconds, and clocks may be apart.
    pub(crate) async fn a_moment(&self) {
        let from = chrono::Utc::now();
        let over = || std::future::ready(chrono::Utc::now() - from > chrono::Duration::milliseconds(5));
        wait_for("some milliseconds", PATIENCE, over).await;
    }

    /// Walks through all runs, `limit` at a time, and says how many went.
    pub(crate) async fn collect_runs(&self, older_than: Duration, limit: u32, dry_run: bool) -> Result<u64> {
        let (mut after, mut deleted) = (None, 0);
        loop {
            let done = self.store.collect_runs(Sweep { older_than, after, limit, dry_run }).await?;
            deleted += done.deleted;
            after = done.next;
            if after.is_none() {
                return Ok(deleted);
            }
        }
    }

    pub(crate) async fn collect_sessions(
        &self,
        older_than: Duration,
        limit: u32,
        dry_run: bool,
    ) -> Result<u64> {
        let (mut after, mut deleted) = (None, 0);
        loop {
            let done = self.store.collect_sessions(Sweep { older_than, after, limit, dry_run }).await?;
            deleted += done.deleted;
            after = done.next;
            if after.is_none() {
                return Ok(deleted);
            }
        }
    }

    async fn is_there(&self, run: RunId) -> bool {
        self.store.get_run(self.tenant, run).await.is_ok()
    }

    async fn session_is_there(&self, session: SessionId) -> bool {
        self.look(session).await.is_ok()
    }

    /// A run that has ended, and its session.
    async fn ended(&self) -> Result<(RunId, SessionId)> {
        let grant = self.executing().await?;
        self.store.commit(completed(&grant)).await?;
        Ok((grant.run.id, grant.fence.session))
    }
}

fn webhook(lab: &Lab, of: WebhookOf) -> NewWebhook {
    NewWebhook {
        id: WebhookId::new(),
        tenant: lab.tenant,
        of,
        url: "https://example.org/hook".into(),
        types: Default::default(),
        secret: WebhookSecret::from_bytes([1; WebhookSecret::LEN]),
    }
}

pub(crate) async fn old_runs_go_with_all_that_hangs_on_them(lab: &Lab) -> Result<()> {
    let grant = lab.budgeted(Limit { tokens: Some(100), micros: None }).await?;
    let session = grant.fence.session;
    let asked = question(None);
    lab.store.commit(Commit { approvals: vec![asked], ..progress(&grant, vec![step(&grant, 0)]) }).await?;
    lab.store.commit(saying(&grant, vec![message(Role::Assistant, "hello")])).await?;
    lab.store.commit(completed(&grant)).await?;
    let before = lab.look(session).await?;
    lab.a_moment().await;
    assert_eq!(lab.collect_runs(HOUR, 10, false).await?, 0, "nothing is as old as that");
    assert_eq!(lab.collect_runs(NO_TIME, 10, true).await?, 1);
    assert!(lab.is_there(grant.run.id).await, "a dry run deletes nothing");
    assert_eq!(lab.collect_runs(NO_TIME, 10, false).await?, 1);
    assert_eq!(lab.collect_runs(NO_TIME, 10, false).await?, 0);

    assert_eq!(refusal(lab.store.get_run(lab.tenant, grant.run.id).await), Code::RunNotFound);
    let left = "SELECT (SELECT count(*) FROM runs) + (SELECT count(*) FROM steps) + (SELECT count(*) FROM approvals) \
                + (SELECT count(*) FROM budgets) + (SELECT count(*) FROM reservations) + (SELECT count(*) FROM waits) \
                + (SELECT count(*) FROM spent_steps)";
    assert_eq!(count(lab, left).await?, 0);
    // What was said, and the stream, are the session's.
    assert_eq!(lab.store.list_messages(lab.tenant, session, &page(10)).await?.items.len(), 1);
    assert_eq!(lab.look(session).await?.last_cursor, before.last_cursor);
    assert_eq!(lab.events_of(session).await?.len(), usize::try_from(before.last_cursor)?);
    // No place and no cursor is given a second time.
    let next = lab.submit(session).await?;
    assert_eq!((next.run.seq, next.events[0].cursor), (2, before.last_cursor + 1));
    Ok(())
}

pub(crate) async fn what_is_not_over_stays(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let waiting = lab.submit(session).await?.run.id;
    // A child that has ended, of a parent that has not; then the other way round.
    let grant = lab.executing().await?;
    let children = [child(), child()];
    lab.store.commit(making(&grant, &children)).await?;
    lab.work_off(children[0].session).await?;
    lab.a_moment().await;
    assert_eq!(lab.collect_runs(NO_TIME, 1, false).await?, 0);
    lab.store.commit(completed(&grant)).await?;
    lab.a_moment().await;
    assert_eq!(lab.collect_runs(NO_TIME, 1, false).await?, 0, "something below it is unfinished");
    assert_eq!(lab.collect_sessions(NO_TIME, 1, true).await?, 1, "the child that nobody waits for any more");
    lab.work_off(children[1].session).await?;
    lab.a_moment().await;
    assert_eq!(lab.collect_runs(NO_TIME, 10, true).await?, 3);
    assert_eq!(lab.collect_runs(NO_TIME, 1, false).await?, 3, "a tree goes whole");
    assert!(lab.is_there(waiting).await);
    lab.check(session).await
}

pub(crate) async fn a_key_that_holds_keeps_its_run(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let keyed = lab.keyed_run(session, "held", 1);
    let held = lab.store.submit(keyed.clone()).await?.run.id;
    // A store that forgets at once.
    let forgetful = connect(&Options { idempotency_ttl: Duration::from_millis(1), ..lab.options() }).await?;
    let forgotten = forgetful.submit(lab.keyed_run(session, "forgotten", 1)).await?.run.id;
    for run in [held, forgotten] {
        lab.store.request_cancel(lab.tenant, run, "no").await?;
    }
    lab.a_moment().await;
    assert_eq!(lab.collect_sessions(NO_TIME, 10, false).await?, 0, "a key of its runs holds");
    assert_eq!(lab.collect_runs(NO_TIME, 10, false).await?, 1);
    assert!(lab.is_there(held).await && !lab.is_there(forgotten).await);
    assert_eq!(count(lab, "SELECT count(*) FROM idempotency_keys").await?, 1);
    // Who asks again gets the first run; the other key is free.
    let again = lab.store.submit(keyed).await?;
    assert!(again.deduplicated && again.run.id == held);
    assert!(!lab.store.submit(lab.keyed_run(session, "forgotten", 1)).await?.deduplicated);
    Ok(())
}

pub(crate) async fn what_is_still_to_be_told_stays(lab: &Lab) -> Result<()> {
    let (run, session) = lab.ended().await?;
    let of_run = lab.store.create_webhook(&webhook(lab, WebhookOf::Run(run))).await?;
    lab.a_moment().await;
    assert_eq!(lab.collect_runs(NO_TIME, 10, false).await?, 0);
    assert_eq!(lab.collect_sessions(NO_TIME, 10, false).await?, 0);
    let to = lab.look(session).await?.last_cursor;
    let outcome =
        DeliveryOutcome::Passed { way: Passage { from: of_run.cursor, to, ended: true }, delivered: true };
    assert!(lab.store.report_delivery(&DeliveryReport { webhook: of_run.id, outcome }).await?);
    assert_eq!(lab.collect_runs(NO_TIME, 10, false).await?, 1);
    assert_eq!(count(lab, "SELECT count(*) FROM webhooks").await?, 0);
    // One that was told of everything so far has nothing to wait for.
    lab.store.create_webhook(&webhook(lab, WebhookOf::Session(session))).await?;
    lab.a_moment().await;
    assert_eq!(lab.collect_sessions(HOUR, 10, false).await?, 0);
    assert_eq!(lab.collect_sessions(NO_TIME, 10, false).await?, 1);
    assert_eq!(count(lab, "SELECT count(*) FROM webhooks").await?, 0);
    Ok(())
}

pub(crate) async fn idle_sessions_go_whole(lab: &Lab) -> Result<()> {
    let named = lab.store.create_session(&lab.new_session(Some("s1"))).await?.value.id;
    let (run, closed) = lab.ended().await?;
    lab.store.close_session(lab.tenant, closed).await?;
    let below = NewSession { parent: Some(closed), ..lab.new_session(None) };
    let below = lab.store.create_session(&below).await?.value.id;
    let busy = lab.session().await?;
    lab.submit(busy).await?;
    lab.a_moment().await;
    assert_eq!(lab.collect_sessions(HOUR, 10, false).await?, 0);
    assert_eq!(lab.collect_sessions(NO_TIME, 1, true).await?, 3);
    assert!(lab.session_is_there(named).await, "a dry run deletes nothing");
    // One walk does it: those below come first.
    assert_eq!(lab.collect_sessions(NO_TIME, 1, false).await?, 3);
    for session in [named, closed, below] {
        assert!(!lab.session_is_there(session).await);
    }
    assert!(!lab.is_there(run).await);
    let left = "SELECT (SELECT count(*) FROM events) + (SELECT count(*) FROM runs) + (SELECT count(*) FROM sessions)";
    assert_eq!(count(lab, left).await?, 4, "of the busy one: itself, its run and two events");
    // The name is free.
    lab.store.create_session(&lab.new_session(Some("s1"))).await?;
    lab.check(busy).await
}

/// A session with its sub-agent's, which a run still works with.
pub(crate) async fn sessions_below_and_above_wait_for_each_other(lab: &Lab) -> Result<()> {
    let grant = lab.executing().await?;
    let children = [child()];
    lab.store.commit(making(&grant, &children)).await?;
    lab.work_off(children[0].session).await?;
    lab.a_moment().await;
    assert_eq!(lab.collect_sessions(NO_TIME, 10, false).await?, 0, "the run that it works for is unfinished");
    lab.store.commit(completed(&grant)).await?;
    let lower = NewSession { parent: Some(children[0].session), ..lab.new_session(None) };
    let lower = lab.store.create_session(&lower).await?.value.id;
    lab.submit(lower).await?;
    lab.a_moment().await;
    for dry_run in [true, false] {
        assert_eq!(lab.collect_sessions(NO_TIME, 10, dry_run).await?, 0, "one far below is busy");
    }
    lab.work_off(lower).await?;
    lab.a_moment().await;
    assert_eq!(lab.collect_sessions(NO_TIME, 10, true).await?, 3);
    assert_eq!(lab.collect_sessions(NO_TIME, 10, false).await?, 3);
    Ok(())
}

/// It counts when a session was last used, also where nothing that tells of it is left.
pub(crate) async fn the_last_use_is_known_without_history(lab: &Lab) -> Result<()> {
    let (two_days, day) = (Duration::from_secs(48 * 3600), Duration::from_secs(24 * 3600));
    let made_at = chrono::Utc::now() - two_days;
    let old_id = |low: u128| {
        let millis = u128::try_from(made_at.timestamp_millis()).unwrap_or(0);
        SessionId::from_uuid(uuid::Uuid::from_u128((millis << 80) | (7 << 76) | (2 << 62) | low))
    };
    let used =
        lab.store.create_session(&NewSession { id: old_id(1), ..lab.new_session(None) }).await?.value.id;
    let renamed =
        lab.store.create_session(&NewSession { id: old_id(2), ..lab.new_session(None) }).await?.value.id;
    let worker = lab.worker(LONG_LEASE).await?;
    lab.submit(used).await?;
    lab.store.commit(completed(&lab.granted(used, worker).await?)).await?;
    // As if both had been made long before.
    execute(
        lab,
        if lab.is_postgres() {
            "UPDATE sessions SET created_at = created_at - interval '2 days'"
        } else {
            "UPDATE sessions SET created_at = created_at - 172800000000"
        },
    )
    .await?;
    assert_eq!(lab.collect_sessions(day, 10, true).await?, 0, "their events are of today");
    lab.a_moment().await;
    let counted = lab.store.count_old_events(NO_TIME, None, 10).await?;
    let trimmed = lab.store.trim_events(NO_TIME, None, 10).await?;
    assert_eq!((trimmed.sessions, counted), (2, trimmed));
    assert_eq!(lab.store.trim_events(NO_TIME, None, 10).await?, Trimmed { next: None, ..Trimmed::default() });
    assert_eq!(lab.collect_sessions(day, 10, true).await?, 0, "trimmed today");
    assert_eq!(count(lab, "SELECT count(*) FROM runs").await?, 1);
    execute(lab, "UPDATE sessions SET quiet_since = NULL").await?;
    assert_eq!(lab.collect_sessions(day, 10, true).await?, 1, "only the run tells");
    // Runs are found by their ids, which are of today.
    assert_eq!(lab.collect_runs(NO_TIME, 10, false).await?, 1);
    assert_eq!(lab.collect_sessions(day, 10, false).await?, 1, "nothing tells of the one");
    assert!(lab.session_is_there(used).await && !lab.session_is_there(renamed).await);
    assert_eq!(lab.collect_sessions(NO_TIME, 10, false).await?, 1);
    Ok(())
}

/// What is large goes in several transactions.
pub(crate) async fn a_large_session_goes_too(lab: &Lab) -> Result<()> {
    let (session, other) = (lab.session().await?, lab.session().await?);
    let submits = (0..230).map(|_| lab.submit(session));
    for submitted in futures::future::join_all(submits).await {
        lab.store.request_cancel(lab.tenant, submitted?.run.id, "no").await?;
    }
    lab.submit(other).await?;
    execute(
        lab,
        "INSERT INTO events (session_id, last_cursor, chunk) WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2500) \
         SELECT s.id, s.last_cursor + n.i, '[]' FROM sessions s CROSS JOIN n WHERE s.pending = 0",
    )
    .await?;
    lab.a_moment().await;
    assert_eq!(lab.collect_sessions(NO_TIME, 10, false).await?, 1);
    assert!(!lab.session_is_there(session).await);
    assert_eq!(count(lab, "SELECT (SELECT count(*) FROM runs) + (SELECT count(*) FROM events)").await?, 3);
    lab.check(other).await
}

/// What cannot be read does not keep the rest.
pub(crate) async fn others_go_on_without_a_broken_one(lab: &Lab) -> Result<()> {
    let (first, broken, last) = (lab.session().await?, lab.session().await?, lab.session().await?);
    lab.store.close_session(lab.tenant, broken).await?;
    execute(lab, "UPDATE events SET chunk = 'x' WHERE session_id IN (SELECT id FROM sessions WHERE closed)")
        .await?;
    lab.a_moment().await;
    assert_eq!(lab.collect_sessions(NO_TIME, 10, false).await?, 2);
    for (session, is_there) in [(first, false), (broken, true), (last, false)] {
        assert_eq!(lab.session_is_there(session).await, is_there);
    }
    Ok(())
}

pub(crate) async fn two_at_once_delete_each_once(lab: &Lab) -> Result<()> {
    let other = connect(&lab.options()).await?;
    for _ in 0..30 {
        let (session, run) = {
            let session = lab.session().await?;
            (session, lab.submit(session).await?.run.id)
        };
        lab.store.request_cancel(lab.tenant, run, "no").await?;
        lab.submit(session).await?;
    }
    lab.a_moment().await;
    let sweep = Sweep { older_than: NO_TIME, after: None, limit: 100, dry_run: false };
    let (one, two) = tokio::join!(lab.store.collect_runs(sweep), other.collect_runs(sweep));
    assert_eq!(one?.deleted + two?.deleted, 30);
    assert_eq!(count(lab, "SELECT count(*) FROM runs").await?, 30);
    Ok(())
}

pub(crate) async fn a_used_session_is_left_alone_while_its_old_runs_go(lab: &Lab) -> Result<()> {
    let (session, worker) = (lab.session().await?, lab.worker(LONG_LEASE).await?);
    for _ in 0..3 {
        lab.submit(session).await?;
    }
    let grant = lab.granted(session, worker).await?;
    lab.store.commit(completed(&grant)).await?;
    lab.a_moment().await;
    assert_eq!(lab.collect_runs(NO_TIME, 10, false).await?, 1);
    assert_eq!(lab.collect_sessions(NO_TIME, 10, false).await?, 0);
    // Its owner goes on as if nothing had happened.
    let grant = lab.granted(session, worker).await?;
    assert_eq!(grant.run.seq, 2);
    lab.store.commit(ending(&grant, RunState::Failed)).await?;
    let grant = lab.granted(session, worker).await?;
    lab.store.commit(completed(&grant)).await?;
    assert_eq!(lab.runs_of(session).await?.iter().map(|run| run.seq).collect::<Vec<_>>(), [2, 3]);
    Ok(())
}
