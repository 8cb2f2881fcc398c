//! Sessions that their owner gave up or lost: what becomes of the run it executed.

use std::collections::{HashMap, HashSet};

use remuda_domain::{
    Appended, EventBody, Run, RunId, SessionId, Timestamp, error::Result, event::NewEvent, run::Fate,
    session::Owner, step::Step,
};
use sqlx::{AssertSqlSafe, query, query_scalar};
use uuid::Uuid;

use super::{
    dialect::{self, Connection, NOW, OVERDUE},
    lock::lock_with_leases,
    park, runs,
    store::Context,
    ties::{self, Ties},
    writes::{self, Ended, Writes},
};
use crate::{
    Lost, Parking, SessionChange, TakenBack,
    error::{db, parse},
    rows::{LockedHead, WORKER_GONE},
    time::DbTime,
    written::{ParkWrite, RunReturn},
};

/// How an owner came to execute its run no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parting<'a> {
    HandedOver,
    Parked(&'a Parking),
    /// It was to be parked, but what it wants to wait for has come.
    NeedNotWait,
    Lost,
}

/// A run that an owner executed, with what was committed of it.
#[derive(Debug)]
pub(super) struct Attempted {
    pub(super) run: Run,
    pub(super) steps: Vec<Step>,
    pub(super) ties: Ties,
}

impl Attempted {
    /// `tied` says whether something may hang on runs of its session.
    pub(super) async fn load(connection: &mut Connection, run: Run, tied: bool) -> Result<Self> {
        let mut steps = Vec::new();
        if run.started_at.is_some() {
            for row in dialect::load_steps(connection, &[run.id.as_uuid()]).await? {
                steps.push(parse("step", &row.step)?);
            }
        }
        let id = run.id.as_uuid();
        let ties = if tied { ties::load(connection, &[id]).await?.remove(&id) } else { None };
        Ok(Self { run, steps, ties: ties.unwrap_or_default() })
    }
}

/// What parting with a session did.
#[derive(Debug, Default)]
pub(super) struct Parted {
    pub(super) events: Appended,
    /// The run ended by it.
    pub(super) ended: bool,
    /// The run above the one that ended.
    pub(super) parent: Option<RunId>,
    /// What a lost worker was at.
    pub(super) lost: Option<Lost>,
}

impl Parted {
    /// What the fleet should hear of it.
    pub(super) fn change(self, locked: &LockedHead) -> SessionChange {
        SessionChange { lost: self.lost, ..change(locked, self.events) }
    }
}

/// Ends an ownership. `current` is the run that the owner executed: it goes back to the head of its line, waits there as
/// data, or ends at once if there is a reason to ([`Run::fate`]).
pub(super) fn part(
    context: &Context,
    locked: &mut LockedHead,
    current: Option<Attempted>,
    parting: Parting<'_>,
    at: Timestamp,
    writes: &mut Writes,
) -> Result<Parted> {
    let (owner, epoch) = (locked.head.owner.worker(), locked.head.epoch);
    let current = current.filter(|it| locked.head.current == Some(it.run.id));
    let started_at = locked.current_started_at.take();
    locked.head.release();
    let (Some(Attempted { mut run, steps, ties }), Some(worker)) = (current, owner) else {
        return Ok(Parted::default());
    };
    let lost = i32::from(parting == Parting::Lost);
    run.lost_attempts += lost.unsigned_abs();
    run.started_at = run.started_at.or(started_at);
    let fate = run.fate(at, context.max_lost_attempts);
    let event = |body| NewEvent { run: Some(run.id), at, body };
    let mut events = match parting {
        Parting::HandedOver => vec![event(EventBody::RunHandedOver { worker })],
        Parting::Lost => vec![event(EventBody::RunAttemptLost { attempts: run.lost_attempts, worker })],
        Parting::Parked(_) | Parting::NeedNotWait => Vec::new(),
    };
    let ended = match fate {
        Fate::End(state, failure) => {
            let attempts = (1, lost);
            let ended = Ended { run: &run, steps: &steps, ties: &ties, state, failure: &failure, attempts };
            events.extend(writes.end(locked, &ended, at)?);
            true
        }
        Fate::Wait => {
            let parking = match parting {
                Parting::Parked(parking) => Some(parking),
                Parting::HandedOver | Parting::NeedNotWait | Parting::Lost => None,
            };
            events.extend(parking.map(|it| event(EventBody::RunParked { reason: it.reason })));
            let parked = parking.map(|parking| parked_as(parking, at));
            if parked.as_ref().is_some_and(|parked| !parked.awaited.is_empty()) {
                writes.tie(locked);
            }
            let started_at = run.started_at.map(DbTime);
            writes.returned.push(RunReturn { id: run.id.as_uuid(), started_at, lost_attempts: lost, parked });
            false
        }
    };
    let parent = run.parent.filter(|_| ended);
    let lost = (parting == Parting::Lost).then_some(Lost { run: run.id, epoch, attempt: run.attempt });
    Ok(Parted { events: writes.append(locked, events)?, ended, parent, lost })
}

fn parked_as(parking: &Parking, at: Timestamp) -> ParkWrite {
    let (awaited, needed) = park::awaited(parking);
    let needed = i32::try_from(needed).ok().filter(|needed| *needed > 0);
    ParkWrite { reason: parking.reason, at: DbTime(at), awaited, needed, amount: parking.amount }
}

/// What the fleet should hear of a session that nobody owns now.
pub(super) fn change(locked: &LockedHead, events: Appended) -> SessionChange {
    let head = &locked.head;
    // A parked head needs no worker, and whoever is woken for it finds nothing to do.
    let wake = head.owner == Owner::Nobody && head.pending > 0;
    SessionChange {
        tenant: head.tenant,
        session: head.session,
        pool: head.pool.clone(),
        wake,
        events,
        lost: None,
    }
}

/// The runs that these sessions' owners execute, by session.
pub(super) async fn current_runs(
    connection: &mut Connection,
    heads: &HashMap<Uuid, LockedHead>,
    sessions: &[Uuid],
) -> Result<HashMap<Uuid, Attempted>> {
    let mut current = HashMap::new();
    if sessions.is_empty() {
        return Ok(current);
    }
    for row in dialect::head_runs(connection, sessions).await? {
        let session = row.run.session_id;
        let Some(locked) = heads.get(&session).filter(|it| it.head.current == Some(row.id())) else {
            continue;
        };
        current.insert(session, Attempted::load(connection, row.run.into_run()?, locked.ties).await?);
    }
    Ok(current)
}

/// Ids of sessions with unfinished runs whose recorded owner has no lease, in order.
fn lost_sessions_sql() -> String {
    format!(
        "SELECT s.id FROM (SELECT DISTINCT session_id FROM runs WHERE state = 0 AND state < 10) q \
         JOIN sessions s ON s.id = q.session_id WHERE s.owner IN ({LAPSED}) ORDER BY s.id LIMIT $1",
        LAPSED = lapsed_sql("")
    )
}

/// Workers without a lease whose sessions may still be recorded as theirs.
fn lapsed_sql(condition: &str) -> String {
    format!(
        "SELECT id FROM workers WHERE NOT taken_back AND (state = {WORKER_GONE} OR lease_until <= {NOW}) {condition}"
    )
}

/// Takes sessions back from workers whose lease ended.
pub(super) async fn take_back(context: &Context, limit: u32) -> Result<TakenBack> {
    let lapsed: Option<Uuid> = query_scalar(AssertSqlSafe(lapsed_sql("LIMIT 1")))
        .fetch_optional(&context.reader)
        .await
        .map_err(db)?;
    // The usual case, and one look at a small table.
    if lapsed.is_none() {
        return Ok(TakenBack::default());
    }
    write_off_lapsed(context).await?;
    let sessions: Vec<Uuid> = query_scalar(AssertSqlSafe(lost_sessions_sql()))
        .bind(i64::from(limit))
        .fetch_all(&context.reader)
        .await
        .map_err(db)?;
    let mut taken = TakenBack { more: sessions.len() >= limit as usize, ..TakenBack::default() };
    if sessions.is_empty() {
        forget_long_gone(context).await?;
        return Ok(taken);
    }
    let mut tx = dialect::begin(&context.writer).await?;
    let (mut locked, _) = lock_with_leases(&mut tx, sessions.into_iter(), std::iter::empty()).await?;
    locked.heads.retain(|_, it| matches!(it.head.owner, Owner::Expired { .. }));
    let ids: Vec<Uuid> = locked.heads.keys().copied().collect();
    let mut current = current_runs(&mut tx, &locked.heads, &ids).await?;
    let mut writes = Writes::default();
    for (id, head) in &mut locked.heads {
        let parted = part(context, head, current.remove(id), Parting::Lost, locked.at, &mut writes)?;
        taken.ended += u64::from(parted.ended);
        taken.changes.push(parted.change(head));
    }
    let parents = std::mem::take(&mut writes.parents);
    let news = std::mem::take(&mut writes.news);
    let counts = writes.write(&mut tx).await?;
    writes::save(&mut tx, &locked.heads, ids).await?;
    tx.commit().await.map_err(db)?;
    context.tally.add(counts);
    context.meters.tell(news);
    taken.changes.extend(park::settle_all(context, &parents).await);
    Ok(taken)
}

/// From here on these workers cannot renew.
async fn write_off_lapsed(context: &Context) -> Result<()> {
    let sql = format!(
        "UPDATE workers SET state = {WORKER_GONE} WHERE state < {WORKER_GONE} AND lease_until <= {NOW}"
    );
    query(AssertSqlSafe(sql)).execute(&mut *dialect::writing(&context.writer).await?).await.map_err(db)?;
    Ok(())
}

/// Spares later rounds the search for sessions of workers that have none. A claim that began before the lease ended may
/// still be under way for as long as a statement may take, so this waits for longer than that.
async fn forget_long_gone(context: &Context) -> Result<()> {
    let sql = format!(
        "UPDATE workers SET taken_back = $1 WHERE NOT taken_back AND state = {WORKER_GONE} AND lease_until <= {}",
        dialect::A_MINUTE_AGO
    );
    query(AssertSqlSafe(sql))
        .bind(true)
        .execute(&mut *dialect::writing(&context.writer).await?)
        .await
        .map_err(db)?;
    Ok(())
}

/// Ends runs that started, that nobody executes now, and whose time is over.
pub(super) async fn end_overdue(context: &Context, limit: u32) -> Result<TakenBack> {
    let sql = format!(
        "SELECT r.session_id FROM runs r WHERE r.state = 0 AND r.started_at IS NOT NULL AND {OVERDUE} LIMIT $1"
    );
    let sessions: Vec<Uuid> = query_scalar(AssertSqlSafe(sql))
        .bind(i64::from(limit))
        .fetch_all(&context.reader)
        .await
        .map_err(db)?;
    let mut ended = TakenBack { more: sessions.len() >= limit as usize, ..TakenBack::default() };
    if sessions.is_empty() {
        return Ok(ended);
    }
    let mut tx = dialect::begin(&context.writer).await?;
    let (mut locked, _) = lock_with_leases(&mut tx, sessions.into_iter(), std::iter::empty()).await?;
    // An owner sees to the time of its run by itself.
    locked.heads.retain(|_, it| it.head.owner == Owner::Nobody);
    let mut writes = Writes::default();
    let mut changed = HashSet::new();
    for (id, head) in &mut locked.heads {
        let session = SessionId::from_uuid(*id);
        let Some(run) = runs::live_runs(&mut tx, session, 1).await?.pop() else { continue };
        let Fate::End(state, failure) = run.fate(locked.at, context.max_lost_attempts) else { continue };
        let Attempted { run, steps, ties } = Attempted::load(&mut tx, run, head.ties).await?;
        let attempts = (0, 0);
        let over = Ended { run: &run, steps: &steps, ties: &ties, state, failure: &failure, attempts };
        let events = writes.end(head, &over, locked.at)?;
        let events = writes.append(head, events)?;
        ended.ended += 1;
        ended.changes.push(change(head, events));
        changed.insert(*id);
    }
    // What is left is someone's, or another process ended it first: asking again at once would find it again.
    ended.more &= ended.ended > 0;
    let parents = std::mem::take(&mut writes.parents);
    let news = std::mem::take(&mut writes.news);
    let counts = writes.write(&mut tx).await?;
    writes::save(&mut tx, &locked.heads, changed).await?;
    tx.commit().await.map_err(db)?;
    context.tally.add(counts);
    context.meters.tell(news);
    ended.changes.extend(park::settle_all(context, &parents).await);
    Ok(ended)
}
