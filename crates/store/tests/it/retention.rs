//! Retention: deleting old runs and sessions.

use std::time::Duration;

use anyhow::Result;
use remuda_domain::{
    Code, RunId, RunState, SessionId, WebhookId, budget::Limit, message::Role, webhook::WebhookSecret,
};
use remuda_store::{
    Commit, CursorAdvance, DeliveryOutcome, DeliveryReport, NewSession, NewWebhook, Options, Sweep, TrimPage,
    WebhookTarget, connect,
};
use remuda_testkit::wait_for;

use crate::{
    fixture::{
        Fixture, LONG_LEASE, PATIENCE, completed, ending, message, page, progress, refusal, saying, step,
    },
    query_plans::{count, execute},
    tree_helpers::{child, creating_children, new_approval},
};

pub(crate) const NO_TIME: Duration = Duration::ZERO;
/// Longer than any test takes.
pub(crate) const HOUR: Duration = Duration::from_secs(3600);

impl Fixture {
    /// Waits until every row so far is older than a retention of zero: ids have millisecond precision, and clocks may
    /// differ.
    pub(crate) async fn sleep_past_clock_skew(&self) {
        let from = chrono::Utc::now();
        let over = || std::future::ready(chrono::Utc::now() - from > chrono::Duration::milliseconds(5));
        wait_for("some milliseconds", PATIENCE, over).await;
    }

    /// Sweeps all runs, `limit` at a time, and returns how many were deleted.
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

    async fn run_exists(&self, run: RunId) -> bool {
        self.store.get_run(self.tenant, run).await.is_ok()
    }

    async fn session_exists(&self, session: SessionId) -> bool {
        self.get_session(session).await.is_ok()
    }

    /// An ended run and its session.
    async fn ended(&self) -> Result<(RunId, SessionId)> {
        let grant = self.executing().await?;
        self.store.commit(completed(&grant)).await?;
        Ok((grant.run.id, grant.fence.session))
    }
}

fn webhook(fixture: &Fixture, target: WebhookTarget) -> NewWebhook {
    NewWebhook {
        id: WebhookId::new(),
        tenant: fixture.tenant,
        target,
        url: "https://example.org/hook".into(),
        types: Default::default(),
        secret: WebhookSecret::from_bytes([1; WebhookSecret::LEN]),
    }
}

pub(crate) async fn old_runs_are_deleted_with_dependent_rows(fixture: &Fixture) -> Result<()> {
    let grant = fixture.budgeted(Limit { tokens: Some(100), micros: None }).await?;
    let session = grant.fence.session;
    let asked = new_approval(None);
    fixture
        .store
        .commit(Commit { approvals: vec![asked], ..progress(&grant, vec![step(&grant, 0)]) })
        .await?;
    fixture.store.commit(saying(&grant, vec![message(Role::Assistant, "hello")])).await?;
    fixture.store.commit(completed(&grant)).await?;
    let before = fixture.get_session(session).await?;
    fixture.sleep_past_clock_skew().await;
    assert_eq!(fixture.collect_runs(HOUR, 10, false).await?, 0, "nothing is that old");
    assert_eq!(fixture.collect_runs(NO_TIME, 10, true).await?, 1);
    assert!(fixture.run_exists(grant.run.id).await, "a dry run deletes nothing");
    assert_eq!(fixture.collect_runs(NO_TIME, 10, false).await?, 1);
    assert_eq!(fixture.collect_runs(NO_TIME, 10, false).await?, 0);

    assert_eq!(refusal(fixture.store.get_run(fixture.tenant, grant.run.id).await), Code::RunNotFound);
    let left = "SELECT (SELECT count(*) FROM runs) + (SELECT count(*) FROM steps) + (SELECT count(*) FROM approvals) \
                + (SELECT count(*) FROM budgets) + (SELECT count(*) FROM reservations) + (SELECT count(*) FROM waits) \
                + (SELECT count(*) FROM spent_steps)";
    assert_eq!(count(fixture, left).await?, 0);
    // Messages and events belong to the session and stay.
    assert_eq!(fixture.store.list_messages(fixture.tenant, session, &page(10)).await?.items.len(), 1);
    assert_eq!(fixture.get_session(session).await?.last_cursor, before.last_cursor);
    assert_eq!(fixture.events_of(session).await?.len(), usize::try_from(before.last_cursor)?);
    // Sequence numbers and cursors are not reused.
    let next = fixture.submit(session).await?;
    assert_eq!((next.run.seq, next.change.events[0].cursor), (2, before.last_cursor + 1));
    Ok(())
}

pub(crate) async fn unfinished_runs_and_their_trees_are_kept(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let waiting = fixture.submit(session).await?.run.id;
    // An ended child of an unfinished parent; then the other way round.
    let grant = fixture.executing().await?;
    let children = [child(), child()];
    fixture.store.commit(creating_children(&grant, &children)).await?;
    fixture.execute_head_run(children[0].run.session).await?;
    fixture.sleep_past_clock_skew().await;
    assert_eq!(fixture.collect_runs(NO_TIME, 1, false).await?, 0);
    fixture.store.commit(completed(&grant)).await?;
    fixture.sleep_past_clock_skew().await;
    assert_eq!(fixture.collect_runs(NO_TIME, 1, false).await?, 0, "a descendant is unfinished");
    assert_eq!(
        fixture.collect_sessions(NO_TIME, 1, true).await?,
        1,
        "the child session whose parent run has ended"
    );
    fixture.execute_head_run(children[1].run.session).await?;
    fixture.sleep_past_clock_skew().await;
    assert_eq!(fixture.collect_runs(NO_TIME, 10, true).await?, 3);
    assert_eq!(fixture.collect_runs(NO_TIME, 1, false).await?, 3, "a tree is deleted completely");
    assert!(fixture.run_exists(waiting).await);
    fixture.check(session).await
}

pub(crate) async fn run_with_a_valid_idempotency_key_is_kept(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let keyed = fixture.keyed_run(session, "held", 1);
    let held = fixture.store.submit(keyed.clone()).await?.run.id;
    // A store whose keys expire immediately.
    let forgetful =
        connect(&Options { idempotency_ttl: Duration::from_millis(1), ..fixture.options() }).await?;
    let forgotten = forgetful.submit(fixture.keyed_run(session, "forgotten", 1)).await?.run.id;
    for run in [held, forgotten] {
        fixture.store.request_cancel(fixture.tenant, run, "no").await?;
    }
    fixture.sleep_past_clock_skew().await;
    assert_eq!(
        fixture.collect_sessions(NO_TIME, 10, false).await?,
        0,
        "an idempotency key of its runs is valid"
    );
    assert_eq!(fixture.collect_runs(NO_TIME, 10, false).await?, 1);
    assert!(fixture.run_exists(held).await && !fixture.run_exists(forgotten).await);
    assert_eq!(count(fixture, "SELECT count(*) FROM idempotency_keys").await?, 1);
    // A retry returns the first run; the expired key can be reused.
    let again = fixture.store.submit(keyed).await?;
    assert!(again.deduplicated && again.run.id == held);
    assert!(!fixture.store.submit(fixture.keyed_run(session, "forgotten", 1)).await?.deduplicated);
    Ok(())
}

pub(crate) async fn runs_with_undelivered_webhook_events_are_kept(fixture: &Fixture) -> Result<()> {
    let (run, session) = fixture.ended().await?;
    let of_run = fixture.store.create_webhook(&webhook(fixture, WebhookTarget::Run(run))).await?;
    fixture.sleep_past_clock_skew().await;
    assert_eq!(fixture.collect_runs(NO_TIME, 10, false).await?, 0);
    assert_eq!(fixture.collect_sessions(NO_TIME, 10, false).await?, 0);
    let to = fixture.get_session(session).await?.last_cursor;
    let outcome = DeliveryOutcome::Advanced {
        advance: CursorAdvance { from: of_run.cursor, to, ended: true },
        delivered: true,
    };
    assert!(fixture.store.report_delivery(&DeliveryReport { webhook: of_run.id, outcome }).await?);
    assert_eq!(fixture.collect_runs(NO_TIME, 10, false).await?, 1);
    assert_eq!(count(fixture, "SELECT count(*) FROM webhooks").await?, 0);
    // A webhook that has delivered everything does not keep its session.
    fixture.store.create_webhook(&webhook(fixture, WebhookTarget::Session(session))).await?;
    fixture.sleep_past_clock_skew().await;
    assert_eq!(fixture.collect_sessions(HOUR, 10, false).await?, 0);
    assert_eq!(fixture.collect_sessions(NO_TIME, 10, false).await?, 1);
    assert_eq!(count(fixture, "SELECT count(*) FROM webhooks").await?, 0);
    Ok(())
}

pub(crate) async fn idle_sessions_are_deleted_completely(fixture: &Fixture) -> Result<()> {
    let named = fixture.store.create_session(&fixture.new_session(Some("s1"))).await?.value.id;
    let (run, closed) = fixture.ended().await?;
    fixture.store.close_session(fixture.tenant, closed).await?;
    let below = NewSession { parent: Some(closed), ..fixture.new_session(None) };
    let below = fixture.store.create_session(&below).await?.value.id;
    let busy = fixture.session().await?;
    fixture.submit(busy).await?;
    fixture.sleep_past_clock_skew().await;
    assert_eq!(fixture.collect_sessions(HOUR, 10, false).await?, 0);
    assert_eq!(fixture.collect_sessions(NO_TIME, 1, true).await?, 3);
    assert!(fixture.session_exists(named).await, "a dry run deletes nothing");
    // One sweep is enough: children come first.
    assert_eq!(fixture.collect_sessions(NO_TIME, 1, false).await?, 3);
    for session in [named, closed, below] {
        assert!(!fixture.session_exists(session).await);
    }
    assert!(!fixture.run_exists(run).await);
    let left = "SELECT (SELECT count(*) FROM events) + (SELECT count(*) FROM runs) + (SELECT count(*) FROM sessions)";
    assert_eq!(count(fixture, left).await?, 4, "of the busy one: itself, its run and two events");
    // The name can be reused.
    fixture.store.create_session(&fixture.new_session(Some("s1"))).await?;
    fixture.check(busy).await
}

/// A session and its sub-agent's session, which an unfinished run still uses.
pub(crate) async fn parent_and_child_sessions_are_kept_while_either_is_in_use(
    fixture: &Fixture,
) -> Result<()> {
    let grant = fixture.executing().await?;
    let children = [child()];
    fixture.store.commit(creating_children(&grant, &children)).await?;
    fixture.execute_head_run(children[0].run.session).await?;
    fixture.sleep_past_clock_skew().await;
    assert_eq!(
        fixture.collect_sessions(NO_TIME, 10, false).await?,
        0,
        "the run that it works for is unfinished"
    );
    fixture.store.commit(completed(&grant)).await?;
    let lower = NewSession { parent: Some(children[0].run.session), ..fixture.new_session(None) };
    let lower = fixture.store.create_session(&lower).await?.value.id;
    fixture.submit(lower).await?;
    fixture.sleep_past_clock_skew().await;
    for dry_run in [true, false] {
        assert_eq!(fixture.collect_sessions(NO_TIME, 10, dry_run).await?, 0, "a descendant is busy");
    }
    fixture.execute_head_run(lower).await?;
    fixture.sleep_past_clock_skew().await;
    assert_eq!(fixture.collect_sessions(NO_TIME, 10, true).await?, 3);
    assert_eq!(fixture.collect_sessions(NO_TIME, 10, false).await?, 3);
    Ok(())
}

/// The last activity of a session counts, even if the rows that show it were deleted.
pub(crate) async fn last_activity_is_known_after_history_was_deleted(fixture: &Fixture) -> Result<()> {
    let (two_days, day) = (Duration::from_secs(48 * 3600), Duration::from_secs(24 * 3600));
    let made_at = chrono::Utc::now() - two_days;
    let old_id = |low: u128| {
        let millis = u128::try_from(made_at.timestamp_millis()).unwrap_or(0);
        SessionId::from_uuid(uuid::Uuid::from_u128((millis << 80) | (7 << 76) | (2 << 62) | low))
    };
    let used = fixture
        .store
        .create_session(&NewSession { id: old_id(1), ..fixture.new_session(None) })
        .await?
        .value
        .id;
    let renamed = fixture
        .store
        .create_session(&NewSession { id: old_id(2), ..fixture.new_session(None) })
        .await?
        .value
        .id;
    let worker = fixture.worker(LONG_LEASE).await?;
    fixture.submit(used).await?;
    fixture.store.commit(completed(&fixture.granted(used, worker).await?)).await?;
    // As if both had been created long ago.
    execute(
        fixture,
        if fixture.is_postgres() {
            "UPDATE sessions SET created_at = created_at - interval '2 days'"
        } else {
            "UPDATE sessions SET created_at = created_at - 172800000000"
        },
    )
    .await?;
    assert_eq!(fixture.collect_sessions(day, 10, true).await?, 0, "their events are of today");
    fixture.sleep_past_clock_skew().await;
    let counted = fixture.store.count_old_events(NO_TIME, None, 10).await?;
    let trimmed = fixture.store.trim_events(NO_TIME, None, 10).await?;
    assert_eq!((trimmed.sessions, counted), (2, trimmed));
    assert_eq!(
        fixture.store.trim_events(NO_TIME, None, 10).await?,
        TrimPage { next: None, ..TrimPage::default() }
    );
    assert_eq!(fixture.collect_sessions(day, 10, true).await?, 0, "trimmed today");
    assert_eq!(count(fixture, "SELECT count(*) FROM runs").await?, 1);
    execute(fixture, "UPDATE sessions SET quiet_since = NULL").await?;
    assert_eq!(fixture.collect_sessions(day, 10, true).await?, 1, "only the run shows recent activity");
    // Runs are found by their ids, which are recent.
    assert_eq!(fixture.collect_runs(NO_TIME, 10, false).await?, 1);
    assert_eq!(fixture.collect_sessions(day, 10, false).await?, 1, "one session has no recent activity left");
    assert!(fixture.session_exists(used).await && !fixture.session_exists(renamed).await);
    assert_eq!(fixture.collect_sessions(NO_TIME, 10, false).await?, 1);
    Ok(())
}

/// A large session is deleted in several transactions.
pub(crate) async fn large_session_is_deleted_in_several_transactions(fixture: &Fixture) -> Result<()> {
    let (session, other) = (fixture.session().await?, fixture.session().await?);
    let submits = (0..230).map(|_| fixture.submit(session));
    for submitted in futures::future::join_all(submits).await {
        fixture.store.request_cancel(fixture.tenant, submitted?.run.id, "no").await?;
    }
    fixture.submit(other).await?;
    execute(
        fixture,
        "INSERT INTO events (session_id, last_cursor, chunk) WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2500) \
         SELECT s.id, s.last_cursor + n.i, '[]' FROM sessions s CROSS JOIN n WHERE s.pending = 0",
    )
    .await?;
    fixture.sleep_past_clock_skew().await;
    assert_eq!(fixture.collect_sessions(NO_TIME, 10, false).await?, 1);
    assert!(!fixture.session_exists(session).await);
    assert_eq!(
        count(fixture, "SELECT (SELECT count(*) FROM runs) + (SELECT count(*) FROM events)").await?,
        3
    );
    fixture.check(other).await
}

/// A session that cannot be read does not block the others.
pub(crate) async fn corrupt_session_does_not_block_the_deletion_of_others(fixture: &Fixture) -> Result<()> {
    let (first, broken, last) =
        (fixture.session().await?, fixture.session().await?, fixture.session().await?);
    fixture.store.close_session(fixture.tenant, broken).await?;
    execute(
        fixture,
        "UPDATE events SET chunk = 'x' WHERE session_id IN (SELECT id FROM sessions WHERE closed)",
    )
    .await?;
    fixture.sleep_past_clock_skew().await;
    assert_eq!(fixture.collect_sessions(NO_TIME, 10, false).await?, 2);
    for (session, run_exists) in [(first, false), (broken, true), (last, false)] {
        assert_eq!(fixture.session_exists(session).await, run_exists);
    }
    Ok(())
}

pub(crate) async fn concurrent_sweeps_delete_each_run_once(fixture: &Fixture) -> Result<()> {
    let other = connect(&fixture.options()).await?;
    for _ in 0..30 {
        let (session, run) = {
            let session = fixture.session().await?;
            (session, fixture.submit(session).await?.run.id)
        };
        fixture.store.request_cancel(fixture.tenant, run, "no").await?;
        fixture.submit(session).await?;
    }
    fixture.sleep_past_clock_skew().await;
    let sweep = Sweep { older_than: NO_TIME, after: None, limit: 100, dry_run: false };
    let (one, two) = tokio::join!(fixture.store.collect_runs(sweep), other.collect_runs(sweep));
    assert_eq!(one?.deleted + two?.deleted, 30);
    assert_eq!(count(fixture, "SELECT count(*) FROM runs").await?, 30);
    Ok(())
}

pub(crate) async fn old_runs_of_an_active_session_are_deleted_and_the_session_is_kept(
    fixture: &Fixture,
) -> Result<()> {
    let (session, worker) = (fixture.session().await?, fixture.worker(LONG_LEASE).await?);
    for _ in 0..3 {
        fixture.submit(session).await?;
    }
    let grant = fixture.granted(session, worker).await?;
    fixture.store.commit(completed(&grant)).await?;
    fixture.sleep_past_clock_skew().await;
    assert_eq!(fixture.collect_runs(NO_TIME, 10, false).await?, 1);
    assert_eq!(fixture.collect_sessions(NO_TIME, 10, false).await?, 0);
    // Its owner continues undisturbed.
    let grant = fixture.granted(session, worker).await?;
    assert_eq!(grant.run.seq, 2);
    fixture.store.commit(ending(&grant, RunState::Failed)).await?;
    let grant = fixture.granted(session, worker).await?;
    fixture.store.commit(completed(&grant)).await?;
    assert_eq!(fixture.runs_of(session).await?.iter().map(|run| run.seq).collect::<Vec<_>>(), [2, 3]);
    Ok(())
}
