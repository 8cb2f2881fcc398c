//! Cancels runs on request of a caller, of a parent's end, or of an interrupting submit.

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
    descendants,
    dialect::{self, Connection, WriteTransaction},
    lock::{LockedSessions, lock_with_leases},
    park, placement,
    recover::{self, AttemptedRun, OwnershipEnd},
    runs,
    store::Context,
    submit::session_not_found,
    write_set::{EndedRun, WriteSet},
};
use crate::{
    CancelScope, CancelSignal, Cancelled, CancelledRuns, LostAttempt, SessionChange, error::db,
    row_writes::CancelMark, rows::LockedHead, time::DbTime,
};

/// Sessions of a tree that one transaction locks.
const SESSIONS_AT_ONCE: usize = 100;
/// Unfinished runs of one session that one transaction ends.
const RUNS_AT_ONCE: i64 = 1000;

/// Cancels runs of one locked session.
pub(super) struct Stopper<'a> {
    pub(super) context: &'a Context,
    pub(super) reason: &'a str,
    pub(super) at: Timestamp,
    pub(super) writes: &'a mut WriteSet,
}

/// What cancelling did to one run.
#[derive(Debug)]
pub(super) enum StopOutcome {
    /// It ended. Contains the attempt that was lost with its worker, if any.
    Ended(Option<LostAttempt>),
    /// It executes; this owner has to be notified.
    Requested(WorkerId),
}

impl Stopper<'_> {
    /// Ends a run that no live worker executes; marks an executing run for its owner.
    pub(super) fn stop(
        &mut self,
        locked: &mut LockedHead,
        attempted: AttemptedRun,
    ) -> Result<(StopOutcome, Appended)> {
        let AttemptedRun { mut run, steps, related } = attempted;
        let is_current = locked.head.current == Some(run.id);
        match locked.head.owner {
            Owner::Alive { worker, .. } if is_current => {
                // Also on a repeated request: the first signal may have been lost.
                Ok((StopOutcome::Requested(worker), self.mark_requested(locked, &run)?))
            }
            Owner::Expired { .. } if is_current => {
                let mut events = self.mark_requested(locked, &run)?;
                run.cancel.get_or_insert_with(|| self.cancel_request());
                let lost = Some(AttemptedRun { run, steps, related });
                let ended_ownership = recover::end_ownership(
                    self.context,
                    locked,
                    lost,
                    OwnershipEnd::Lost,
                    self.at,
                    self.writes,
                )?;
                events.extend(ended_ownership.events);
                Ok((StopOutcome::Ended(ended_ownership.lost), events))
            }
            _ => {
                self.mark(&run);
                let failure = Failure::new(Code::Cancelled, self.reason);
                let (state, attempts) = (RunState::Cancelled, (0, 0));
                let ended = EndedRun {
                    run: &run,
                    steps: &steps,
                    related: &related,
                    state,
                    failure: &failure,
                    attempts,
                };
                let events = self.writes.end(locked, &ended, self.at)?;
                Ok((StopOutcome::Ended(None), self.writes.append(locked, events)?))
            }
        }
    }

    fn cancel_request(&self) -> CancelRequest {
        CancelRequest { at: self.at, reason: self.reason.to_owned(), delivered_at: None, stopped_at: None }
    }

    fn mark(&mut self, run: &Run) {
        let reason = self.reason.to_owned();
        self.writes.cancels.push(CancelMark { run: run.id.as_uuid(), at: DbTime(self.at), reason });
    }

    /// Records the request. A repeated request does not replace the first.
    fn mark_requested(&mut self, locked: &mut LockedHead, run: &Run) -> Result<Appended> {
        if run.cancel.is_some() {
            return Ok(Appended::default());
        }
        self.mark(run);
        let body = EventBody::RunCancelRequested { reason: self.reason.to_owned() };
        self.writes.append(locked, vec![NewEvent { run: Some(run.id), at: self.at, body }])
    }
}

fn missing_session() -> Error {
    Error::internal("run without a session")
}

pub(super) async fn cancel_run(
    context: &Context,
    tenant: TenantId,
    run: RunId,
    reason: &str,
) -> Result<Cancelled> {
    let mut tx = dialect::begin(&context.writer).await?;
    // Find the session first: it has to be locked before anything is decided.
    let session = runs::load(&mut tx, tenant, run).await?.session.as_uuid();
    let (mut locked, _) = lock_with_leases(&mut tx, std::iter::once(session), std::iter::empty()).await?;
    let found = runs::load(&mut tx, tenant, run).await?;
    let at = locked.at;
    let head = locked.heads.get_mut(&session).ok_or_else(missing_session)?;
    let has_related = head.has_related;
    let already_finished = found.state.is_terminal();
    let mut writes = WriteSet::default();
    let (mut signal, mut change) = (None, placement::events_only(head, Appended::default()));
    if !already_finished {
        let mut stopper = Stopper { context, reason, at, writes: &mut writes };
        let (stopped, events) = stopper.stop(head, AttemptedRun::load(&mut tx, found, has_related).await?)?;
        change = placement::session_change(head, events);
        match stopped {
            StopOutcome::Ended(lost) => change.lost = lost,
            StopOutcome::Requested(worker) => signal = Some(worker),
        }
    }
    let parents = std::mem::take(&mut writes.parents);
    if !already_finished {
        writes.save_heads(&locked, [session]);
    }
    let post_commit = writes.write(&mut tx).await?;
    let found = runs::load(&mut tx, tenant, run).await?;
    tx.commit().await.map_err(db)?;
    post_commit.apply(context);
    let mut descendants = CancelledRuns::default();
    if has_related {
        descendants::cancel_best_effort(context, &[run.as_uuid()], reason, &mut descendants).await;
        descendants.changes.extend(park::resume_all_ready(context, &parents).await);
    }
    Ok(Cancelled { run: found, already_finished, change, signal, descendants })
}

/// Cancels every unfinished run of a session and their descendants, or of the session's tree, some sessions at a time.
pub(super) async fn cancel_session(
    context: &Context,
    tenant: TenantId,
    session: SessionId,
    scope: CancelScope,
    reason: &str,
) -> Result<CancelledRuns> {
    let mut connection = context.reader.acquire().await.map_err(db)?;
    let sessions = sessions_in_scope(&mut connection, tenant, session, scope).await?;
    drop(connection);
    if sessions.is_empty() {
        return Err(session_not_found());
    }
    let mut all = CancelledRuns::default();
    let mut effects = StopEffects::default();
    for some in sessions.chunks(SESSIONS_AT_ONCE) {
        let mut more = true;
        while more {
            more = stop_page(context, some, reason, &mut all, &mut effects).await?;
        }
    }
    descendants::cancel_best_effort(context, &effects.with_related, reason, &mut all).await;
    all.changes.extend(park::resume_all_ready(context, &effects.parents).await);
    Ok(all)
}

/// What has to follow after runs were cancelled.
#[derive(Debug, Default)]
pub(super) struct StopEffects {
    /// Cancelled runs that may have related rows, such as children.
    with_related: Vec<Uuid>,
    /// Parents of runs that ended.
    pub(super) parents: Vec<RunId>,
}

async fn sessions_in_scope(
    connection: &mut Connection,
    tenant: TenantId,
    session: SessionId,
    scope: CancelScope,
) -> Result<Vec<Uuid>> {
    let sql = match scope {
        CancelScope::Session => "SELECT id FROM sessions WHERE id = $1 AND tenant_id = $2",
        CancelScope::Tree => {
            "WITH RECURSIVE tree (id) AS (SELECT id FROM sessions WHERE id = $1 AND tenant_id = $2 \
             UNION SELECT s.id FROM tree t JOIN sessions s ON s.parent_id = t.id WHERE s.tenant_id = $2) \
             SELECT id FROM tree ORDER BY id"
        }
    };
    query_scalar(sql).bind(session.as_uuid()).bind(tenant.as_uuid()).fetch_all(connection).await.map_err(db)
}

/// Cancels runs of these sessions in one transaction. Returns whether more are left.
async fn stop_page(
    context: &Context,
    sessions: &[Uuid],
    reason: &str,
    all: &mut CancelledRuns,
    effects: &mut StopEffects,
) -> Result<bool> {
    let mut tx = dialect::begin(&context.writer).await?;
    let (mut locked, _) = lock_with_leases(&mut tx, sessions.iter().copied(), std::iter::empty()).await?;
    let (mut live, mut more) = (Vec::new(), false);
    for id in locked.heads.keys() {
        let some = runs::live_runs(&mut tx, SessionId::from_uuid(*id), RUNS_AT_ONCE).await?;
        more |= i64::try_from(some.len()) == Ok(RUNS_AT_ONCE);
        live.extend(some);
    }
    let stopped = stop_runs(tx, context, &mut locked, live, reason, effects).await?;
    // Executing runs are found again each time, so continue only while runs end.
    let ended = !stopped.ended.is_empty();
    merge(all, stopped);
    Ok(more && ended)
}

pub(super) fn merge(all: &mut CancelledRuns, some: CancelledRuns) {
    all.ended.extend(some.ended);
    all.changes.extend(some.changes);
    for signal in some.requested {
        if !all.requested.contains(&signal) {
            all.requested.push(signal);
        }
    }
}

/// Cancels these unfinished runs of locked sessions and commits.
pub(super) async fn stop_runs(
    mut tx: WriteTransaction,
    context: &Context,
    locked: &mut LockedSessions,
    runs: Vec<Run>,
    reason: &str,
    effects: &mut StopEffects,
) -> Result<CancelledRuns> {
    let (mut writes, mut done) = (WriteSet::default(), CancelledRuns::default());
    // A session has one current run, so at most one attempt is lost.
    let mut changed_sessions: BTreeMap<Uuid, (Appended, Option<LostAttempt>)> = BTreeMap::new();
    for run in runs {
        let (id, session) = (run.id, run.session);
        let head = locked.heads.get_mut(&session.as_uuid()).ok_or_else(missing_session)?;
        if head.has_related {
            effects.with_related.push(id.as_uuid());
        }
        let mut stopper = Stopper { context, reason, at: locked.at, writes: &mut writes };
        let attempted = AttemptedRun::load(&mut tx, run, head.has_related).await?;
        let (stopped, appended) = stopper.stop(head, attempted)?;
        let (events, lost) = changed_sessions.entry(session.as_uuid()).or_default();
        events.extend(appended);
        match stopped {
            StopOutcome::Ended(with) => {
                *lost = lost.or(with);
                done.ended.push(id);
            }
            StopOutcome::Requested(worker) => done.requested.push(CancelSignal { worker, session, run: id }),
        }
    }
    effects.parents.append(&mut writes.parents);
    writes.save_heads(locked, changed_sessions.keys().copied());
    writes.commit(context, tx).await?;
    for (session, (events, lost)) in changed_sessions {
        let head = locked.heads.get(&session).ok_or_else(missing_session)?;
        done.changes.push(SessionChange { lost, ..placement::session_change(head, events) });
    }
    Ok(done)
}

/// Cancels every unfinished run of a locked session, before an `if_busy = interrupt` submit is accepted.
pub(super) async fn stop_all(
    connection: &mut Connection,
    stopper: &mut Stopper<'_>,
    locked: &mut LockedSessions,
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
        let attempted = AttemptedRun::load(connection, run, head.has_related).await?;
        let (stopped, events) = stopper.stop(head, attempted)?;
        interrupted.events.extend(events);
        interrupted.runs.push(id);
        match stopped {
            StopOutcome::Ended(lost) => interrupted.lost = interrupted.lost.or(lost),
            StopOutcome::Requested(worker) => interrupted.signal = Some((worker, id)),
        }
    }
    Ok(interrupted)
}

/// What an interrupting submit cancelled.
#[derive(Debug, Default)]
pub(super) struct Interrupted {
    pub(super) runs: Vec<RunId>,
    pub(super) events: Appended,
    /// The owner to notify, and the run that it should cancel.
    pub(super) signal: Option<(WorkerId, RunId)>,
    pub(super) lost: Option<LostAttempt>,
}
