//! Stopping runs from outside.

use std::collections::{BTreeMap, HashMap};

use remuda_domain::{
    Appended, Code, Error, EventBody, Run, RunId, SessionId, TenantId, Timestamp, WorkerId,
    error::Result,
    event::NewEvent,
    run::{CancelRequest, Failure, RunState},
    session::Owner,
};
use sqlx::query_scalar;
use uuid::Uuid;

use super::{
    below,
    dialect::{self, Connection},
    lock::{Locked, lock_with_leases},
    park,
    recover::{self, Attempted, Parting},
    runs,
    store::Context,
    submit::session_not_found,
    writes::{self, Ended, Writes},
};
use crate::{
    CancelSignal, Cancelled, CancelledRuns, Lost, Reach, SessionChange, error::db, meters::News,
    rows::LockedHead, time::DbTime, written::CancelMark,
};

/// Sessions of a tree that are locked at once.
const SESSIONS_AT_ONCE: usize = 100;
/// Unfinished runs of one session that are ended at once.
const RUNS_AT_ONCE: i64 = 1000;

/// Stops runs of one locked session.
pub(super) struct Stopper<'a> {
    pub(super) context: &'a Context,
    pub(super) reason: &'a str,
    pub(super) at: Timestamp,
    pub(super) writes: &'a mut Writes,
}

/// What became of one run.
#[derive(Debug)]
pub(super) enum Stopped {
    /// With the worker that was lost at it, if there was one.
    Ended(Option<Lost>),
    /// Its owner has to be told.
    Requested(WorkerId),
}

impl Stopper<'_> {
    /// A run that nobody executes ends here, also if its worker was lost; one that executes is marked for its owner.
    pub(super) fn stop(
        &mut self,
        locked: &mut LockedHead,
        attempted: Attempted,
    ) -> Result<(Stopped, Appended)> {
        let Attempted { mut run, steps, ties } = attempted;
        let is_current = locked.head.current == Some(run.id);
        match locked.head.owner {
            Owner::Alive { worker, .. } if is_current => {
                // Also when asked again: the first signal may have been lost.
                Ok((Stopped::Requested(worker), self.request(locked, &run)?))
            }
            Owner::Expired { .. } if is_current => {
                let mut events = self.request(locked, &run)?;
                run.cancel.get_or_insert_with(|| self.asked());
                let lost = Some(Attempted { run, steps, ties });
                let parted = recover::part(self.context, locked, lost, Parting::Lost, self.at, self.writes)?;
                events.extend(parted.events);
                Ok((Stopped::Ended(parted.lost), events))
            }
            _ => {
                self.mark(&run);
                let failure = Failure::new(Code::Cancelled, self.reason);
                let (state, attempts) = (RunState::Cancelled, (0, 0));
                let ended =
                    Ended { run: &run, steps: &steps, ties: &ties, state, failure: &failure, attempts };
                let events = self.writes.end(locked, &ended, self.at)?;
                Ok((Stopped::Ended(None), self.writes.append(locked, events)?))
            }
        }
    }

    fn asked(&self) -> CancelRequest {
        CancelRequest { at: self.at, reason: self.reason.to_owned(), delivered_at: None, stopped_at: None }
    }

    fn mark(&mut self, run: &Run) {
        let reason = self.reason.to_owned();
        self.writes.cancels.push(CancelMark { run: run.id.as_uuid(), at: DbTime(self.at), reason });
    }

    /// Asked again, the first request stands.
    fn request(&mut self, locked: &mut LockedHead, run: &Run) -> Result<Appended> {
        if run.cancel.is_some() {
            return Ok(Appended::default());
        }
        self.mark(run);
        let body = EventBody::RunCancelRequested { reason: self.reason.to_owned() };
        self.writes.append(locked, vec![NewEvent { run: Some(run.id), at: self.at, body }])
    }
}

fn lonely_run() -> Error {
    Error::internal("a run has no session")
}

pub(super) async fn request(
    context: &Context,
    tenant: TenantId,
    run: RunId,
    reason: &str,
) -> Result<Cancelled> {
    let mut tx = dialect::begin(&context.writer).await?;
    // The run's session first: its lock comes before anything is decided.
    let session = runs::load(&mut tx, tenant, run).await?.session.as_uuid();
    let (mut locked, _) = lock_with_leases(&mut tx, std::iter::once(session), std::iter::empty()).await?;
    let found = runs::load(&mut tx, tenant, run).await?;
    let at = locked.at;
    let head = locked.heads.get_mut(&session).ok_or_else(lonely_run)?;
    let tied = head.ties;
    let already_finished = found.state.is_terminal();
    let mut writes = Writes::default();
    let (mut signal, mut change) = (None, quiet(head));
    if !already_finished {
        let mut stopper = Stopper { context, reason, at, writes: &mut writes };
        let (stopped, events) = stopper.stop(head, Attempted::load(&mut tx, found, tied).await?)?;
        change = recover::change(head, events);
        match stopped {
            Stopped::Ended(lost) => change.lost = lost,
            Stopped::Requested(worker) => signal = Some(worker),
        }
    }
    let parents = std::mem::take(&mut writes.parents);
    let news = std::mem::take(&mut writes.news);
    let counts = writes.write(&mut tx).await?;
    if !already_finished {
        writes::save(&mut tx, &locked.heads, [session]).await?;
    }
    let found = runs::load(&mut tx, tenant, run).await?;
    tx.commit().await.map_err(db)?;
    context.meters.tell(news);
    context.tally.add(counts);
    let mut below = CancelledRuns::default();
    if tied {
        below::cancel_or_leave(context, &[run.as_uuid()], reason, &mut below).await;
        below.changes.extend(park::settle_all(context, &parents).await);
    }
    Ok(Cancelled { run: found, already_finished, change, signal, below })
}

/// Nothing changed.
fn quiet(locked: &LockedHead) -> SessionChange {
    SessionChange { wake: false, ..recover::change(locked, Appended::default()) }
}

/// Stops every unfinished run of a session and what is below these, or of its tree, some sessions at a time.
pub(super) async fn session(
    context: &Context,
    tenant: TenantId,
    session: SessionId,
    reach: Reach,
    reason: &str,
) -> Result<CancelledRuns> {
    let mut connection = context.reader.acquire().await.map_err(db)?;
    let sessions = members(&mut connection, tenant, session, reach).await?;
    drop(connection);
    if sessions.is_empty() {
        return Err(session_not_found());
    }
    let mut all = CancelledRuns::default();
    let mut family = Family::default();
    for some in sessions.chunks(SESSIONS_AT_ONCE) {
        let mut more = true;
        while more {
            more = stop_some(context, some, reason, &mut all, &mut family).await?;
        }
    }
    below::cancel_or_leave(context, &family.tied, reason, &mut all).await;
    all.changes.extend(park::settle_all(context, &family.parents).await);
    Ok(all)
}

/// The relatives of runs that were stopped.
#[derive(Debug, Default)]
pub(super) struct Family {
    /// Those on which something may hang, such as runs below them.
    tied: Vec<Uuid>,
    /// The runs above those that ended.
    pub(super) parents: Vec<RunId>,
    /// What is to be told once it is committed.
    pub(super) news: News,
}

async fn members(
    connection: &mut Connection,
    tenant: TenantId,
    session: SessionId,
    reach: Reach,
) -> Result<Vec<Uuid>> {
    let sql = match reach {
        Reach::Session => "SELECT id FROM sessions WHERE id = $1 AND tenant_id = $2",
        Reach::Tree => {
            "WITH RECURSIVE tree (id) AS (SELECT id FROM sessions WHERE id = $1 AND tenant_id = $2 \
             UNION SELECT s.id FROM tree t JOIN sessions s ON s.parent_id = t.id WHERE s.tenant_id = $2) \
             SELECT id FROM tree ORDER BY id"
        }
    };
    query_scalar(sql).bind(session.as_uuid()).bind(tenant.as_uuid()).fetch_all(connection).await.map_err(db)
}

/// Stops what these sessions have, and says whether some of it has to wait for the next transaction.
async fn stop_some(
    context: &Context,
    sessions: &[Uuid],
    reason: &str,
    all: &mut CancelledRuns,
    family: &mut Family,
) -> Result<bool> {
    let mut tx = dialect::begin(&context.writer).await?;
    let (mut locked, _) = lock_with_leases(&mut tx, sessions.iter().copied(), std::iter::empty()).await?;
    let (mut live, mut more) = (Vec::new(), false);
    for id in locked.heads.keys() {
        let some = runs::live_runs(&mut tx, SessionId::from_uuid(*id), RUNS_AT_ONCE).await?;
        more |= i64::try_from(some.len()) == Ok(RUNS_AT_ONCE);
        live.extend(some);
    }
    let stopped = stop_runs(&mut tx, context, &mut locked, live, reason, family).await?;
    tx.commit().await.map_err(db)?;
    context.meters.tell(std::mem::take(&mut family.news));
    // Those that execute are found again, as often as there is more.
    let ended = !stopped.ended.is_empty();
    add(all, stopped);
    Ok(more && ended)
}

pub(super) fn add(all: &mut CancelledRuns, some: CancelledRuns) {
    all.ended.extend(some.ended);
    all.changes.extend(some.changes);
    for signal in some.requested {
        if !all.requested.contains(&signal) {
            all.requested.push(signal);
        }
    }
}

/// Stops these unfinished runs of locked sessions, and writes what comes of it.
pub(super) async fn stop_runs(
    connection: &mut Connection,
    context: &Context,
    locked: &mut Locked,
    runs: Vec<Run>,
    reason: &str,
    family: &mut Family,
) -> Result<CancelledRuns> {
    let (mut writes, mut done) = (Writes::default(), CancelledRuns::default());
    // A session has one run that executes, so it loses one at most.
    let mut told: BTreeMap<Uuid, (Appended, Option<Lost>)> = BTreeMap::new();
    for run in runs {
        let (id, session) = (run.id, run.session);
        let head = locked.heads.get_mut(&session.as_uuid()).ok_or_else(lonely_run)?;
        if head.ties {
            family.tied.push(id.as_uuid());
        }
        let mut stopper = Stopper { context, reason, at: locked.at, writes: &mut writes };
        let attempted = Attempted::load(connection, run, head.ties).await?;
        let (stopped, appended) = stopper.stop(head, attempted)?;
        let (events, lost) = told.entry(session.as_uuid()).or_default();
        events.extend(appended);
        match stopped {
            Stopped::Ended(with) => {
                *lost = lost.or(with);
                done.ended.push(id);
            }
            Stopped::Requested(worker) => done.requested.push(CancelSignal { worker, session, run: id }),
        }
    }
    family.parents.append(&mut writes.parents);
    family.news.append(&mut writes.news);
    let counts = writes.write(connection).await?;
    writes::save(connection, &locked.heads, told.keys().copied()).await?;
    for (session, (events, lost)) in told {
        let head = locked.heads.get(&session).ok_or_else(lonely_run)?;
        done.changes.push(SessionChange { lost, ..recover::change(head, events) });
    }
    // The caller commits this next.
    context.tally.add(counts);
    Ok(done)
}

/// Stops every unfinished run of a locked session: what `if_busy = interrupt` does before its own run is accepted.
pub(super) async fn stop_all(
    connection: &mut Connection,
    stopper: &mut Stopper<'_>,
    locked: &mut Locked,
    session: SessionId,
    tenant: TenantId,
) -> Result<Interrupted> {
    let mut interrupted = Interrupted::default();
    let heads: &mut HashMap<Uuid, LockedHead> = &mut locked.heads;
    let Some(head) = heads.get_mut(&session.as_uuid()).filter(|it| it.head.tenant == tenant) else {
        return Ok(interrupted);
    };
    for run in runs::live_runs(connection, session, i64::MAX).await? {
        let id = run.id;
        let attempted = Attempted::load(connection, run, head.ties).await?;
        let (stopped, events) = stopper.stop(head, attempted)?;
        interrupted.events.extend(events);
        interrupted.runs.push(id);
        match stopped {
            Stopped::Ended(lost) => interrupted.lost = interrupted.lost.or(lost),
            Stopped::Requested(worker) => interrupted.signal = Some((worker, id)),
        }
    }
    Ok(interrupted)
}

/// What an interrupting submit stopped.
#[derive(Debug, Default)]
pub(super) struct Interrupted {
    pub(super) runs: Vec<RunId>,
    pub(super) events: Appended,
    /// The owner to tell, and the run it should stop.
    pub(super) signal: Option<(WorkerId, RunId)>,
    pub(super) lost: Option<Lost>,
}
