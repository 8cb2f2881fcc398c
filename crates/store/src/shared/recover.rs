//! Ends ownerships: what happens to the current run when its owner releases or loses the session.

use std::{collections::HashMap, time::Duration};

use remuda_domain::{
    Appended, EventBody, Run, RunId, RunState, Timestamp, error::Result, event::NewEvent, run::Fate,
    session::Owner, step::Step,
};
use sqlx::{AssertSqlSafe, query, query_as, query_scalar};
use uuid::Uuid;

use super::{
    dialect::{self, Connection, NOW},
    lock::lock_with_leases,
    park, placement,
    related_rows::{self, RelatedRows},
    store::Context,
    write_set::{EndedRun, WriteSet},
};
use crate::{
    LostAttempt, ParkRequest, Reclaimed, SessionChange,
    error::{db, parse},
    row_writes::{ParkWrite, RunRelease},
    rows::{LockedHead, WORKER_GONE},
    time::DbTime,
};

/// Why an ownership ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnershipEnd<'a> {
    HandedOver,
    Parked(&'a ParkRequest),
    /// It was to be parked, but its wait is already satisfied.
    AlreadySatisfied,
    Lost,
}

/// A run that was attempted, with its committed steps.
#[derive(Debug)]
pub(super) struct AttemptedRun {
    pub(super) run: Run,
    pub(super) steps: Vec<Step>,
    pub(super) related: RelatedRows,
}

impl AttemptedRun {
    /// Loads steps and related rows. `has_related` says whether runs of its session may have related rows.
    pub(super) async fn load(connection: &mut Connection, mut run: Run, has_related: bool) -> Result<Self> {
        let mut steps = Vec::new();
        if run.state == RunState::Running {
            run.worked = run.worked.max(reported_time(connection, &run).await?);
        }
        if run.started_at.is_some() {
            for row in dialect::load_steps(connection, &[run.id.as_uuid()]).await? {
                steps.push(parse("step", &row.step)?);
            }
        }
        let id = run.id.as_uuid();
        let related =
            if has_related { related_rows::load(connection, &[id]).await?.remove(&id) } else { None };
        Ok(Self { run, steps, related: related.unwrap_or_default() })
    }
}

/// How long a run was executed according to the last heartbeat of its session's owner.
async fn reported_time(connection: &mut Connection, run: &Run) -> Result<Duration> {
    let reported: Option<(String, String)> = query_as(
        "SELECT w.running, w.worked_ms FROM sessions s JOIN workers w ON w.id = s.owner WHERE s.id = $1",
    )
    .bind(run.session.as_uuid())
    .fetch_optional(connection)
    .await
    .map_err(db)?;
    let Some((running, worked)) = reported else { return Ok(Duration::ZERO) };
    let running: Vec<Uuid> = parse("list of runs", &running)?;
    let worked: Vec<u64> = parse("list of times", &worked)?;
    let reported = running.iter().zip(worked).find(|(id, _)| **id == run.id.as_uuid());
    Ok(reported.map_or(Duration::ZERO, |(_, millis)| Duration::from_millis(millis)))
}

/// What ending an ownership did.
#[derive(Debug, Default)]
pub(super) struct EndedOwnership {
    pub(super) events: Appended,
    /// The run ended.
    pub(super) ended: bool,
    /// The parent of the ended run.
    pub(super) parent: Option<RunId>,
    /// The attempt that was lost with its worker.
    pub(super) lost: Option<LostAttempt>,
}

impl EndedOwnership {
    /// The session change for the caller.
    pub(super) fn session_change(self, locked: &LockedHead) -> SessionChange {
        SessionChange { lost: self.lost, ..placement::session_change(locked, self.events) }
    }
}

/// Ends an ownership. `current` is the run that the owner executed: it goes back to the head of its queue, is parked,
/// or ends if there is a reason to ([`Run::fate`]).
pub(super) fn end_ownership(
    context: &Context,
    locked: &mut LockedHead,
    current: Option<AttemptedRun>,
    reason: OwnershipEnd<'_>,
    at: Timestamp,
    writes: &mut WriteSet,
) -> Result<EndedOwnership> {
    let (owner, epoch) = (locked.head.owner.worker(), locked.head.epoch);
    let current = current.filter(|it| locked.head.current == Some(it.run.id));
    let started_at = locked.current_started_at.take();
    locked.head.release();
    let (Some(AttemptedRun { mut run, steps, related }), Some(worker)) = (current, owner) else {
        return Ok(EndedOwnership::default());
    };
    let lost = i32::from(reason == OwnershipEnd::Lost);
    run.lost_attempts += lost.unsigned_abs();
    run.started_at = run.started_at.or(started_at);
    let fate = run.fate(context.max_lost_attempts);
    let event = |body| NewEvent { run: Some(run.id), at, body };
    let mut events = match reason {
        OwnershipEnd::HandedOver => vec![event(EventBody::RunHandedOver { worker })],
        OwnershipEnd::Lost => vec![event(EventBody::RunAttemptLost { attempts: run.lost_attempts, worker })],
        OwnershipEnd::Parked(_) | OwnershipEnd::AlreadySatisfied => Vec::new(),
    };
    let ended = match fate {
        Fate::End(state, failure) => {
            let attempts = (1, lost);
            let ended =
                EndedRun { run: &run, steps: &steps, related: &related, state, failure: &failure, attempts };
            events.extend(writes.end(locked, &ended, at)?);
            true
        }
        Fate::Wait => {
            let parking = match reason {
                OwnershipEnd::Parked(parking) => Some(parking),
                OwnershipEnd::HandedOver | OwnershipEnd::AlreadySatisfied | OwnershipEnd::Lost => None,
            };
            events.extend(parking.map(|it| event(EventBody::RunParked { reason: it.reason })));
            let parked = parking.map(|parking| park_write(parking, at));
            if parked.as_ref().is_some_and(|parked| !parked.awaited.is_empty()) {
                writes.mark_related(locked);
            }
            let started_at = run.started_at.map(DbTime);
            writes.released.push(RunRelease {
                id: run.id.as_uuid(),
                started_at,
                lost_attempts: lost,
                worked: run.worked,
                parked,
            });
            false
        }
    };
    let parent = run.parent.filter(|_| ended);
    let lost =
        (reason == OwnershipEnd::Lost).then_some(LostAttempt { run: run.id, epoch, attempt: run.attempt });
    Ok(EndedOwnership { events: writes.append(locked, events)?, ended, parent, lost })
}

fn park_write(parking: &ParkRequest, at: Timestamp) -> ParkWrite {
    let (awaited, needed) = park::awaited(parking);
    let needed = i32::try_from(needed).ok().filter(|needed| *needed > 0);
    ParkWrite { reason: parking.reason, at: DbTime(at), awaited, needed, amount: parking.amount }
}

/// Loads the current runs of these sessions, by session.
pub(super) async fn current_runs(
    connection: &mut Connection,
    heads: &HashMap<Uuid, LockedHead>,
    sessions: &[Uuid],
) -> Result<HashMap<Uuid, AttemptedRun>> {
    let mut current = HashMap::new();
    if sessions.is_empty() {
        return Ok(current);
    }
    for row in dialect::head_runs(connection, sessions).await? {
        let session = row.run.session_id;
        let Some(locked) = heads.get(&session).filter(|it| it.head.current == Some(row.id())) else {
            continue;
        };
        current
            .insert(session, AttemptedRun::load(connection, row.run.into_run()?, locked.has_related).await?);
    }
    Ok(current)
}

/// Selects sessions with unfinished runs whose recorded owner's lease has expired, in id order.
fn lost_sessions_sql() -> String {
    format!(
        "SELECT s.id FROM (SELECT DISTINCT session_id FROM runs WHERE state = 0 AND state < 10) q \
         JOIN sessions s ON s.id = q.session_id WHERE s.owner IN ({LAPSED}) ORDER BY s.id LIMIT $1",
        LAPSED = expired_workers_sql("")
    )
}

/// Selects workers with an expired lease that may still be recorded as owners.
fn expired_workers_sql(condition: &str) -> String {
    format!(
        "SELECT id FROM workers WHERE NOT taken_back AND (state = {WORKER_GONE} OR lease_until <= {NOW}) {condition}"
    )
}

/// Reclaims sessions from workers whose lease has expired.
pub(super) async fn reclaim_sessions(context: &Context, limit: u32) -> Result<Reclaimed> {
    let expired: Option<Uuid> = query_scalar(AssertSqlSafe(expired_workers_sql("LIMIT 1")))
        .fetch_optional(&context.reader)
        .await
        .map_err(db)?;
    // The usual case: one read of a small table.
    if expired.is_none() {
        return Ok(Reclaimed::default());
    }
    mark_expired_gone(context).await?;
    let sessions: Vec<Uuid> = query_scalar(AssertSqlSafe(lost_sessions_sql()))
        .bind(i64::from(limit))
        .fetch_all(&context.reader)
        .await
        .map_err(db)?;
    let mut reclaimed = Reclaimed { more: sessions.len() >= limit as usize, ..Reclaimed::default() };
    if sessions.is_empty() {
        mark_reclaimed(context).await?;
        return Ok(reclaimed);
    }
    let mut tx = dialect::begin(&context.writer).await?;
    let (mut locked, _) = lock_with_leases(&mut tx, sessions.into_iter(), std::iter::empty()).await?;
    locked.heads.retain(|_, it| matches!(it.head.owner, Owner::Expired { .. }));
    let ids: Vec<Uuid> = locked.heads.keys().copied().collect();
    let mut current = current_runs(&mut tx, &locked.heads, &ids).await?;
    let mut writes = WriteSet::default();
    for (id, head) in &mut locked.heads {
        let ended_ownership =
            end_ownership(context, head, current.remove(id), OwnershipEnd::Lost, locked.at, &mut writes)?;
        reclaimed.ended += u64::from(ended_ownership.ended);
        reclaimed.changes.push(ended_ownership.session_change(head));
    }
    let parents = std::mem::take(&mut writes.parents);
    writes.save_heads(&locked, ids);
    writes.commit(context, tx).await?;
    reclaimed.changes.extend(park::resume_all_ready(context, &parents).await);
    Ok(reclaimed)
}

/// Marks workers with an expired lease as gone; they can no longer renew it.
async fn mark_expired_gone(context: &Context) -> Result<()> {
    let sql = format!(
        "UPDATE workers SET state = {WORKER_GONE} WHERE state < {WORKER_GONE} AND lease_until <= {NOW}"
    );
    query(AssertSqlSafe(sql))
        .execute(&mut *dialect::write_connection(&context.writer).await?)
        .await
        .map_err(db)?;
    Ok(())
}

/// Marks long-gone workers as reclaimed, so that later rounds skip them. A claim that began before the lease expired
/// may still be in progress for as long as a statement may take, so this waits longer than that.
async fn mark_reclaimed(context: &Context) -> Result<()> {
    let sql = format!(
        "UPDATE workers SET taken_back = $1 WHERE NOT taken_back AND state = {WORKER_GONE} AND lease_until <= {}",
        dialect::A_MINUTE_AGO
    );
    query(AssertSqlSafe(sql))
        .bind(true)
        .execute(&mut *dialect::write_connection(&context.writer).await?)
        .await
        .map_err(db)?;
    Ok(())
}
