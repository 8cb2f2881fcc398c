//! Deletes old events of finished runs.

use std::{collections::HashSet, time::Duration};

use chrono::TimeDelta;
use remuda_domain::{Event, SessionId, Timestamp, error::Result};
use sqlx::{AssertSqlSafe, query_as, query_scalar};
use sqlx_macros::FromRow;
use uuid::Uuid;

use super::{
    chunks,
    dialect::{self, AMONG_1, Connection, id_list},
    gc_runs::record_activity,
    store::Context,
};
use crate::{
    TrimPage,
    error::{db, parse},
    time::{DbTime, now},
};

/// Rows read and deleted per batch, and batches per session before the next session.
const ROWS_PER_BATCH: i64 = 50;
const BATCHES_PER_SESSION: u32 = 10;

#[derive(Debug, FromRow)]
struct Candidate {
    id: Uuid,
    created_at: DbTime,
    pending: i64,
    last_cursor: i64,
    oldest: Option<String>,
}

/// Trims one page of sessions, in id order.
pub(super) async fn trim(
    context: &Context,
    retention: Duration,
    after: Option<SessionId>,
    limit: u32,
) -> Result<TrimPage> {
    let mut connection = dialect::write_connection(&context.writer).await?;
    trim_page(&mut connection, retention, after, limit, false).await
}

/// Counts what repeated calls of [`trim`] would delete from these sessions.
pub(super) async fn count(
    context: &Context,
    retention: Duration,
    after: Option<SessionId>,
    limit: u32,
) -> Result<TrimPage> {
    let mut connection = context.reader.acquire().await.map_err(db)?;
    trim_page(&mut connection, retention, after, limit, true).await
}

async fn trim_page(
    connection: &mut Connection,
    retention: Duration,
    after: Option<SessionId>,
    limit: u32,
    dry_run: bool,
) -> Result<TrimPage> {
    let retention = TimeDelta::from_std(retention).unwrap_or(TimeDelta::MAX);
    let before = now().checked_sub_signed(retention).unwrap_or(Timestamp::MIN_UTC);
    let sql = format!(
        "SELECT s.id, s.created_at, s.pending, s.last_cursor, {} AS oldest FROM sessions s WHERE s.id > $1 ORDER BY s.id LIMIT $2",
        chunks::OLDEST
    );
    let candidates: Vec<Candidate> = query_as(AssertSqlSafe(sql))
        .bind(after.map_or(Uuid::nil(), SessionId::as_uuid))
        .bind(i64::from(limit.max(1)))
        .fetch_all(&mut *connection)
        .await
        .map_err(db)?;
    let mut trimmed = TrimPage::default();
    // Ids are ordered by creation time: no session after a recent one has old events.
    let last =
        candidates.last().filter(|last| candidates.len() >= limit as usize && last.created_at.0 < before);
    trimmed.next = last.map(|last| SessionId::from_uuid(last.id));
    for candidate in &candidates {
        let Some(oldest) = &candidate.oldest else { continue };
        if is_older(&parse::<Vec<Event>>("event", oldest)?, before) {
            let rows = trim_session(connection, candidate, before, dry_run).await?;
            trimmed.rows += rows;
            trimmed.sessions += u64::from(rows > 0);
        }
    }
    Ok(trimmed)
}

fn is_older(chunk: &[Event], before: Timestamp) -> bool {
    chunk.iter().all(|event| event.at < before)
}

/// Deletes from the beginning, so that the rest of the stream has no gap.
async fn trim_session(
    connection: &mut Connection,
    session: &Candidate,
    before: Timestamp,
    dry_run: bool,
) -> Result<u64> {
    let (mut deleted, mut from) = (0, 0);
    for _ in 0..if dry_run { u32::MAX } else { BATCHES_PER_SESSION } {
        let rows = chunks::after(connection, session.id, from, ROWS_PER_BATCH).await?;
        let mut chunks: Vec<(i64, Vec<Event>)> = Vec::with_capacity(rows.len());
        for row in &rows {
            chunks.push((row.last_cursor, parse("event", &row.chunk)?));
        }
        let unfinished = if session.pending > 0 {
            let runs: HashSet<Uuid> = runs_of(&chunks).collect();
            unfinished(connection, &Vec::from_iter(runs)).await?
        } else {
            // A run submitted meanwhile has no old events.
            HashSet::new()
        };
        let finished = |chunk: &[Event]| {
            chunk.iter().filter_map(|it| it.run).all(|run| !unfinished.contains(&run.as_uuid()))
        };
        let old = chunks.iter().take_while(|(_, chunk)| is_older(chunk, before) && finished(chunk)).count();
        let Some((through, newest)) = chunks[..old].last() else { break };
        deleted += if dry_run { old as u64 } else { delete(connection, session, *through, newest).await? };
        if old < chunks.len() {
            break;
        }
        from = *through;
    }
    Ok(deleted)
}

/// Deletes chunks up to a cursor. `newest` is the last of them.
async fn delete(
    connection: &mut Connection,
    session: &Candidate,
    through: i64,
    newest: &[Event],
) -> Result<u64> {
    if through >= session.last_cursor
        && let Some(at) = newest.iter().map(|event| event.at).max()
    {
        record_activity(connection, session.id, at).await?;
    }
    chunks::delete_through(connection, session.id, through).await
}

fn runs_of(chunks: &[(i64, Vec<Event>)]) -> impl Iterator<Item = Uuid> + '_ {
    chunks.iter().flat_map(|(_, chunk)| chunk.iter().filter_map(|event| Some(event.run?.as_uuid())))
}

/// Which of these runs are unfinished. `+ 0` keeps the planner from walking the index of all live runs instead of
/// looking these up.
async fn unfinished(connection: &mut Connection, runs: &[Uuid]) -> Result<HashSet<Uuid>> {
    let sql = format!("SELECT id FROM runs WHERE id {AMONG_1} AND state + 0 < 10");
    let ids: Vec<Uuid> =
        query_scalar(AssertSqlSafe(sql)).bind(id_list(runs)?).fetch_all(connection).await.map_err(db)?;
    Ok(ids.into_iter().collect())
}
