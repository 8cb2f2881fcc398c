//! Deletes sessions without activity for longer than the retention period.

use remuda_domain::{Event, SessionId, Timestamp, error::Result};
use sqlx::{AssertSqlSafe, query_as, query_scalar};
use sqlx_macros::FromRow;
use uuid::Uuid;

use super::{
    chunks,
    delete::delete_sessions,
    dialect::{self, Connection, NOW},
    gc, gc_runs,
    lock::lock,
    store::Context,
};
use crate::{
    Sweep, SweepResult,
    error::{db, parse},
    time::DbTime,
};

/// Event rows, and runs, deleted in one transaction. A smaller session is deleted in one transaction.
const EVENTS_AT_ONCE: i64 = 1000;
const RUNS_AT_ONCE: i64 = 100;
/// Descendants that a dry run checks per session.
const MAX_DESCENDANTS: usize = 1000;

/// The end of the last run of a session `s`, whose runs have all ended.
const LAST_RUN: &str = "(SELECT coalesce(r.finished_at, r.created_at) FROM runs r WHERE r.session_id = s.id \
    ORDER BY r.seq DESC LIMIT 1)";

#[derive(Debug, FromRow)]
struct Candidate {
    id: Uuid,
    pending: i64,
    created_at: DbTime,
    quiet_since: Option<DbTime>,
    last_run: Option<DbTime>,
}

impl Candidate {
    /// Whether the session may be idle, as far as its row and its last run show. Its events are checked later.
    fn may_be_old(&self, before: Timestamp) -> bool {
        let times = [Some(self.created_at), self.quiet_since, self.last_run];
        self.pending == 0 && times.into_iter().flatten().all(|at| at.0 < before)
    }
}

#[derive(Debug, FromRow)]
struct SessionUsage {
    last_cursor: i64,
    newest: Option<String>,
    has_children: bool,
    #[sqlx(rename = "is_used")]
    is_in_use: bool,
}

/// An idle session; it may be deleted if its last cursor is unchanged.
struct IdleSession {
    id: Uuid,
    last_cursor: i64,
    has_children: bool,
}

/// Handles one page of sessions, newest first, so that children come before their parents.
pub(super) async fn collect(context: &Context, sweep: Sweep<SessionId>) -> Result<SweepResult<SessionId>> {
    let mut connection = context.reader.acquire().await.map_err(db)?;
    let before = gc::cutoff(&mut connection, sweep.older_than).await?;
    let check = IdleCheck { before, keys_hold: context.idempotency_ttl > sweep.older_than };
    let bound = gc::first_id_at(before);
    let sql = format!(
        "SELECT s.id, s.pending, s.created_at, s.quiet_since, {LAST_RUN} AS last_run \
         FROM sessions s WHERE s.id < $1 ORDER BY s.id DESC LIMIT $2"
    );
    let page: Vec<Candidate> = query_as(AssertSqlSafe(sql))
        .bind(sweep.after.map_or(bound, |after| after.as_uuid().min(bound)))
        .bind(i64::from(sweep.limit.max(1)))
        .fetch_all(&mut *connection)
        .await
        .map_err(db)?;
    let is_full = page.len() >= sweep.limit.max(1) as usize;
    let next = page.last().filter(|_| is_full).map(|last| SessionId::from_uuid(last.id));
    let mut deleted = 0;
    for candidate in page.iter().filter(|it| it.may_be_old(before)) {
        let outcome = match check.check(&mut connection, candidate.id).await {
            Ok(None) => continue,
            Ok(Some(old)) if sweep.dry_run => check.all_descendants_are_idle(&mut connection, &old).await,
            Ok(Some(old)) if old.has_children => continue,
            Ok(Some(old)) => delete(context, &old).await,
            Err(error) => Err(error),
        };
        match outcome {
            Ok(gone) => deleted += u64::from(gone),
            Err(error) => {
                // The next page continues after it: a session that cannot be deleted must not block the rest.
                let session = SessionId::from_uuid(candidate.id);
                tracing::warn!(error = error.chain(), %session, "deleting an idle session failed; the next round will retry");
                return Ok(SweepResult { deleted, next: Some(session) });
            }
        }
    }
    Ok(SweepResult { deleted, next })
}

/// Decides whether sessions are idle.
struct IdleCheck {
    before: Timestamp,
    /// Idempotency keys may be valid for longer than sessions are kept.
    keys_hold: bool,
}

impl IdleCheck {
    async fn check(&self, connection: &mut Connection, session: Uuid) -> Result<Option<IdleSession>> {
        let keyed = if self.keys_hold {
            format!(
                "EXISTS (SELECT 1 FROM runs r JOIN idempotency_keys k ON k.tenant_id = r.tenant_id \
                 AND k.key = r.idempotency_key AND k.run_id = r.id WHERE r.session_id = s.id AND k.expires_at > {NOW})"
            )
        } else {
            "1 = 2".to_owned()
        };
        let sql = format!(
            "SELECT s.last_cursor, {newest} AS newest, \
             EXISTS (SELECT 1 FROM sessions c WHERE c.parent_id = s.id) AS has_children, \
             EXISTS (SELECT 1 FROM webhooks w WHERE w.session_id = s.id \
               AND (w.created_at >= $2 OR (w.state || '' = 'active' AND w.cursor < s.last_cursor))) \
             OR (s.parent_id IS NOT NULL AND EXISTS (SELECT 1 FROM runs r JOIN runs p ON p.id = r.parent_run \
               WHERE r.session_id = s.id AND p.state + 0 < 10)) \
             OR {keyed} AS is_used FROM sessions s WHERE s.id = $1",
            newest = chunks::NEWEST
        );
        let standing: Option<SessionUsage> = query_as(AssertSqlSafe(sql))
            .bind(session)
            .bind(DbTime(self.before))
            .fetch_optional(connection)
            .await
            .map_err(db)?;
        let Some(standing) = standing.filter(|it| !it.is_in_use) else { return Ok(None) };
        let newest =
            standing.newest.as_deref().map(|chunk| parse::<Vec<Event>>("event", chunk)).transpose()?;
        let is_old = newest.iter().flatten().all(|event| event.at < self.before);
        let SessionUsage { last_cursor, has_children, .. } = standing;
        Ok(is_old.then_some(IdleSession { id: session, last_cursor, has_children }))
    }

    /// Whether all descendants of a session would be deleted before it.
    async fn all_descendants_are_idle(
        &self,
        connection: &mut Connection,
        root: &IdleSession,
    ) -> Result<bool> {
        let (mut above, mut seen) = (if root.has_children { vec![root.id] } else { Vec::new() }, 0);
        while let Some(parent) = above.pop() {
            let children = children(connection, parent).await?;
            seen += children.len();
            if seen > MAX_DESCENDANTS || !children.iter().all(|child| child.may_be_old(self.before)) {
                return Ok(false);
            }
            for child in children {
                match self.check(connection, child.id).await? {
                    Some(old) if old.has_children => above.push(old.id),
                    Some(_) => {}
                    None => return Ok(false),
                }
            }
        }
        Ok(true)
    }
}

async fn children(connection: &mut Connection, parent: Uuid) -> Result<Vec<Candidate>> {
    let sql = format!(
        "SELECT s.id, s.pending, s.created_at, s.quiet_since, {LAST_RUN} AS last_run \
         FROM sessions s WHERE s.parent_id = $1 ORDER BY s.id LIMIT $2"
    );
    query_as(AssertSqlSafe(sql))
        .bind(parent)
        .bind(i64::try_from(MAX_DESCENDANTS + 1).unwrap_or(i64::MAX))
        .fetch_all(connection)
        .await
        .map_err(db)
}

/// Deletes a session unless it has changed meanwhile. A large session is deleted in several transactions from its
/// beginning on, so that an interruption leaves a session without its oldest history, as if it were trimmed.
async fn delete(context: &Context, old: &IdleSession) -> Result<bool> {
    loop {
        let mut tx = dialect::begin(&context.writer).await?;
        let locked = lock(&mut tx, std::iter::once(old.id)).await?;
        let is_same = |head: &remuda_domain::Head| head.pending == 0 && head.last_cursor == old.last_cursor;
        if !locked.heads.get(&old.id).is_some_and(|it| is_same(&it.head))
            || has_children(&mut tx, old.id).await?
        {
            return Ok(false);
        }
        let is_rest = delete_events(&mut tx, old.id).await? && delete_runs(&mut tx, old.id).await?;
        if is_rest {
            delete_sessions(&mut tx, &[old.id]).await?;
        }
        tx.commit().await.map_err(db)?;
        if is_rest {
            return Ok(true);
        }
    }
}

async fn has_children(connection: &mut Connection, session: Uuid) -> Result<bool> {
    let child: Option<Uuid> = query_scalar("SELECT id FROM sessions WHERE parent_id = $1 LIMIT 1")
        .bind(session)
        .fetch_optional(connection)
        .await
        .map_err(db)?;
    Ok(child.is_some())
}

/// Deletes the oldest events. Returns true if few are left.
async fn delete_events(connection: &mut Connection, session: Uuid) -> Result<bool> {
    let through = chunks::end_of_oldest(connection, session, EVENTS_AT_ONCE).await?;
    let Some(through) = through else { return Ok(true) };
    chunks::delete_through(connection, session, through).await?;
    Ok(false)
}

/// Deletes the oldest runs. Returns true if few are left.
async fn delete_runs(connection: &mut Connection, session: Uuid) -> Result<bool> {
    let runs: Vec<Uuid> = query_scalar("SELECT id FROM runs WHERE session_id = $1 ORDER BY seq LIMIT $2")
        .bind(session)
        .bind(RUNS_AT_ONCE)
        .fetch_all(&mut *connection)
        .await
        .map_err(db)?;
    if i64::try_from(runs.len()).is_ok_and(|count| count < RUNS_AT_ONCE) {
        return Ok(true);
    }
    gc_runs::delete(connection, &runs).await?;
    Ok(false)
}
