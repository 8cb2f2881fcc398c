//! Deleting events of finished history.

use std::{collections::HashSet, time::Duration};

use chrono::TimeDelta;
use remuda_domain::{Event, SessionId, Timestamp, error::Result};
use sqlx::{AssertSqlSafe, FromRow, query_as, query_scalar};
use uuid::Uuid;

use super::{
    chunks,
    dialect::{self, AMONG_1, Connection, id_list},
    gc_runs::note,
    store::Context,
};
use crate::{
    Trimmed,
    error::{db, parse},
    time::{DbTime, now},
};

/// Rows that are read and deleted together, and how often that is done for one session before others have their turn.
const ROWS: i64 = 50;
const TURNS: u32 = 10;

#[derive(Debug, FromRow)]
struct Candidate {
    id: Uuid,
    created_at: DbTime,
    pending: i64,
    last_cursor: i64,
    oldest: Option<String>,
}

/// Looks at some sessions, in the order of their ids.
pub(super) async fn trim(
    context: &Context,
    kept: Duration,
    after: Option<SessionId>,
    limit: u32,
) -> Result<Trimmed> {
    let mut connection = dialect::writing(&context.writer).await?;
    look(&mut connection, kept, after, limit, false).await
}

/// Counts all that [`trim`] would delete of these sessions in the end.
pub(super) async fn count(
    context: &Context,
    kept: Duration,
    after: Option<SessionId>,
    limit: u32,
) -> Result<Trimmed> {
    let mut connection = context.reader.acquire().await.map_err(db)?;
    look(&mut connection, kept, after, limit, true).await
}

async fn look(
    connection: &mut Connection,
    kept: Duration,
    after: Option<SessionId>,
    limit: u32,
    dry_run: bool,
) -> Result<Trimmed> {
    let kept = TimeDelta::from_std(kept).unwrap_or(TimeDelta::MAX);
    let before = now().checked_sub_signed(kept).unwrap_or(Timestamp::MIN_UTC);
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
    let mut trimmed = Trimmed::default();
    // Ids are in the order of time: behind a session that is too young there are none with old events.
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

/// Deletes from the beginning on: what stays has no hole.
async fn trim_session(
    connection: &mut Connection,
    session: &Candidate,
    before: Timestamp,
    dry_run: bool,
) -> Result<u64> {
    let (mut deleted, mut from) = (0, 0);
    for _ in 0..if dry_run { u32::MAX } else { TURNS } {
        let rows = chunks::after(connection, session.id, from, ROWS).await?;
        let mut chunks: Vec<(i64, Vec<Event>)> = Vec::with_capacity(rows.len());
        for row in &rows {
            chunks.push((row.last_cursor, parse("event", &row.chunk)?));
        }
        let unfinished = if session.pending > 0 {
            let runs: HashSet<Uuid> = runs_of(&chunks).collect();
            unfinished(connection, &Vec::from_iter(runs)).await?
        } else {
            // A run that is submitted meanwhile has no old events.
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

/// Deletes up to there. `newest` is what tells of the last of it.
async fn delete(
    connection: &mut Connection,
    session: &Candidate,
    through: i64,
    newest: &[Event],
) -> Result<u64> {
    if through >= session.last_cursor
        && let Some(at) = newest.iter().map(|event| event.at).max()
    {
        note(connection, session.id, at).await?;
    }
    chunks::delete_through(connection, session.id, through).await
}

fn runs_of(chunks: &[(i64, Vec<Event>)]) -> impl Iterator<Item = Uuid> + '_ {
    chunks.iter().flat_map(|(_, chunk)| chunk.iter().filter_map(|event| Some(event.run?.as_uuid())))
}

/// `+ 0` keeps the planner from walking the index of all live runs instead of looking these up.
async fn unfinished(connection: &mut Connection, runs: &[Uuid]) -> Result<HashSet<Uuid>> {
    let sql = format!("SELECT id FROM runs WHERE id {AMONG_1} AND state + 0 < 10");
    let ids: Vec<Uuid> =
        query_scalar(AssertSqlSafe(sql)).bind(id_list(runs)?).fetch_all(connection).await.map_err(db)?;
    Ok(ids.into_iter().collect())
}
