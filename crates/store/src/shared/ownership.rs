//! What workers do: claim, commit, release.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use async_trait::async_trait;
use remuda_domain::{
    Code, Error, Event, EventBody, Fence, MessageId, RunId, RunState, SessionId, TenantId, Timestamp,
    WorkerId,
    error::Result,
    event::NewEvent,
    session::{ClaimDecision, Owner},
    step::Step,
};
use sqlx::{AssertSqlSafe, query, query_scalar};
use uuid::Uuid;

use super::{
    dialect::{self, Connection, NOW},
    store::{ClaimRequest, Context, SqlStore, append},
    submit::lock,
};
use crate::{
    Claim, Commit, Committed, Grant, Ownership,
    error::{db, json, parse},
    rows::{Chunk, HeadRow, HeadRunRow, LockedHead, MessageWrite, RunFinish, StepWrite, WORKER_GONE},
    time::{DbTime, now},
};

#[async_trait]
impl Ownership for SqlStore {
    async fn claim(&self, tenant: TenantId, session: SessionId, worker: WorkerId) -> Result<Claim> {
        self.claims.call(ClaimRequest { tenant, session, worker }).await
    }

    async fn commit(&self, commit: Commit) -> Result<Committed> {
        self.commits.call(commit).await
    }

    async fn release(&self, fence: Fence) -> Result<()> {
        self.give_up(fence).await
    }

    async fn is_runnable(&self, tenant: TenantId, session: SessionId) -> Result<bool> {
        let sql = format!(
            "SELECT EXISTS (SELECT 1 FROM sessions s WHERE s.id = $1 AND s.tenant_id = $2 AND s.pending > 0 \
             AND NOT EXISTS (SELECT 1 FROM workers w WHERE w.id = s.owner AND w.state < {WORKER_GONE} AND w.lease_until > {NOW}) \
             AND 0 = (SELECT r.state FROM runs r WHERE r.session_id = s.id AND r.state < 10 ORDER BY r.seq LIMIT 1))"
        );
        query_scalar(AssertSqlSafe(sql))
            .bind(session.as_uuid())
            .bind(tenant.as_uuid())
            .fetch_one(&self.context.reader)
            .await
            .map_err(db)
    }
}

/// Grants ownership of many sessions in one transaction.
pub(crate) async fn claim_batch(context: &Context, batch: &[ClaimRequest]) -> Result<Vec<Result<Claim>>> {
    let mut tx = dialect::begin(&context.writer).await?;
    let (mut heads, leases) = lock_with_leases(&mut tx, batch).await?;
    let ids: Vec<Uuid> = heads.keys().copied().collect();
    let mut runs = by_session(dialect::head_runs(&mut tx, &ids).await?);
    let at = now();
    let mut granted: HashMap<Uuid, (WorkerId, Duration)> = HashMap::new();
    let mut lost_attempts = Vec::new();
    let mut claims = Vec::with_capacity(batch.len());
    for request in batch {
        let session = request.session.as_uuid();
        // What is given to a worker without a lease could be taken from it at once, while it begins.
        let Some(Owner::Alive { lease_left, .. }) = leases.get(&request.worker.as_uuid()).copied() else {
            claims.push(Err(Error::new(Code::OwnershipLost, "the worker's lease has ended")));
            continue;
        };
        let locked = heads.get_mut(&session).filter(|it| it.head.tenant == request.tenant);
        if let (Some(_), Some(&(owner, retry_after))) = (&locked, granted.get(&session)) {
            claims.push(Ok(Claim::Refused { owner, retry_after }));
            continue;
        }
        // A parked run holds its session's line but needs no worker.
        let row = runs.remove(&session).filter(HeadRunRow::is_runnable);
        let (Some(locked), Some(row)) = (locked, row) else {
            claims.push(Ok(Claim::NothingToDo));
            continue;
        };
        claims.push(Ok(match locked.head.claim(request.worker) {
            ClaimDecision::NothingToDo => Claim::NothingToDo,
            ClaimDecision::Refused { owner, retry_after } => {
                runs.insert(session, row);
                Claim::Refused { owner, retry_after }
            }
            ClaimDecision::Granted { fence } => {
                let taken_over = locked.head.current == Some(row.id());
                if taken_over {
                    lost_attempts.push(row.id().as_uuid());
                }
                let started_at = start(locked, row.id(), at);
                granted.insert(session, (request.worker, lease_left));
                Claim::Granted(Box::new(grant(fence, row, started_at, taken_over)?))
            }
        }));
    }
    if !lost_attempts.is_empty() {
        dialect::count_lost_attempts(&mut tx, &lost_attempts).await?;
    }
    let changed: Vec<&LockedHead> = granted.keys().filter_map(|id| heads.get(id)).collect();
    if !changed.is_empty() {
        dialect::save_heads(&mut tx, &changed).await?;
    }
    load_earlier_steps(&mut tx, claims.iter_mut().flatten().filter_map(granted_run)).await?;
    tx.commit().await.map_err(db)?;
    Ok(claims)
}

fn granted_run(claim: &mut Claim) -> Option<&mut Grant> {
    match claim {
        Claim::Granted(grant) => Some(grant),
        Claim::Refused { .. } | Claim::NothingToDo => None,
    }
}

/// Locks the sessions and finds out which recorded owners, and which of the workers that ask, still live. An owner whose
/// lease ended is written off for good, under a lock on its row: had it renewed in the meantime, it would count as alive.
async fn lock_with_leases(
    connection: &mut Connection,
    batch: &[ClaimRequest],
) -> Result<(HashMap<Uuid, LockedHead>, HashMap<Uuid, Owner>)> {
    let mut ids: Vec<Uuid> = batch.iter().map(|request| request.session.as_uuid()).collect();
    ids.sort_unstable();
    ids.dedup();
    let rows: Vec<HeadRow> = dialect::lock_heads(connection, &ids).await?;
    let mut owners: Vec<Uuid> = rows.iter().filter_map(|row| row.owner).collect();
    owners.sort_unstable();
    owners.dedup();
    let mut workers: HashSet<Uuid> = owners.iter().copied().collect();
    workers.extend(batch.iter().map(|request| request.worker.as_uuid()));
    let workers: Vec<Uuid> = workers.into_iter().collect();
    let leases = dialect::leases(connection, &workers).await?;
    let mut leases: HashMap<Uuid, Owner> = leases.into_iter().map(|it| (it.id, it.owner())).collect();
    for owner in owners {
        let worker = WorkerId::from_uuid(owner);
        // The row of a worker is never deleted while it owns anything.
        let lease = leases.entry(owner).or_insert(Owner::Expired { worker });
        if matches!(lease, Owner::Expired { .. }) && !write_off(connection, owner).await? {
            *lease = Owner::Alive { worker, lease_left: Duration::from_secs(1) };
        }
    }
    let head = |row: HeadRow| {
        let owner = row.owner.and_then(|owner| leases.get(&owner)).copied().unwrap_or(Owner::Nobody);
        Ok((row.id, row.into_head(owner)?))
    };
    let heads = rows.into_iter().map(head).collect::<Result<_>>()?;
    Ok((heads, leases))
}

/// Marks a worker as gone unless it has renewed its lease after all.
async fn write_off(connection: &mut Connection, worker: Uuid) -> Result<bool> {
    let sql = format!(
        "UPDATE workers SET state = {WORKER_GONE} WHERE id = $1 AND (state = {WORKER_GONE} OR lease_until <= {NOW})"
    );
    let done = query(AssertSqlSafe(sql)).bind(worker).execute(connection).await.map_err(db)?;
    Ok(done.rows_affected() == 1)
}

fn by_session(rows: Vec<HeadRunRow>) -> HashMap<Uuid, HeadRunRow> {
    rows.into_iter().map(|row| (row.run.session_id, row)).collect()
}

/// Makes `run` the current one. A run that was current already keeps the time of its first start.
fn start(locked: &mut LockedHead, run: RunId, at: Timestamp) -> Timestamp {
    if locked.head.current != Some(run) {
        locked.head.current = Some(run);
        locked.current_started_at = Some(at);
    }
    *locked.current_started_at.get_or_insert(at)
}

fn grant(fence: Fence, row: HeadRunRow, started_at: Timestamp, taken_over: bool) -> Result<Grant> {
    let mut run = row.run.into_run()?;
    // `into_run` counts an attempt of a run that is current in the row, which only a taken-over run is.
    run.attempt += 1;
    debug_assert!(!taken_over || run.attempt > 1);
    run.state = RunState::Running;
    run.started_at = Some(started_at);
    Ok(Grant { fence, run, steps: Vec::new(), workspace_root: row.root })
}

/// Only a run with earlier attempts has steps.
async fn load_earlier_steps<'a>(
    connection: &mut Connection,
    grants: impl Iterator<Item = &'a mut Grant>,
) -> Result<()> {
    let mut resumed: Vec<&mut Grant> = grants.filter(|grant| grant.run.attempt > 1).collect();
    if resumed.is_empty() {
        return Ok(());
    }
    let ids: Vec<Uuid> = resumed.iter().map(|grant| grant.run.id.as_uuid()).collect();
    let mut steps: HashMap<Uuid, Vec<Step>> = HashMap::new();
    for row in dialect::load_steps(connection, &ids).await? {
        steps.entry(row.run_id).or_default().push(parse("step", &row.step)?);
    }
    for grant in &mut resumed {
        grant.steps = steps.remove(&grant.run.id.as_uuid()).unwrap_or_default();
    }
    Ok(())
}

/// What a batch of commits writes.
#[derive(Default)]
struct Writes {
    finished: Vec<RunFinish>,
    steps: Vec<StepWrite>,
    messages: Vec<MessageWrite>,
    chunks: Vec<Chunk>,
}

impl Writes {
    /// Keeps the last of several versions of a step: PostgreSQL refuses to write a row twice in one statement.
    fn keep_last_versions(&mut self) {
        let mut seen = HashSet::new();
        self.steps.reverse();
        self.steps.retain(|step| seen.insert((step.run, step.id)));
        self.steps.reverse();
    }
}

/// A commit that passed its checks, waiting for its successor.
struct Planned {
    fence: Fence,
    events: Vec<Event>,
    ended: bool,
    give_up: bool,
}

/// Writes the progress and the ends of many runs in one transaction, each answered for itself.
pub(crate) async fn commit_batch(context: &Context, batch: &[Commit]) -> Result<Vec<Result<Committed>>> {
    let mut tx = dialect::begin(&context.writer).await?;
    let mut heads = lock(&mut tx, batch.iter().map(|commit| commit.fence.session.as_uuid())).await?;
    let at = now();
    let mut writes = Writes::default();
    let mut planned = Vec::with_capacity(batch.len());
    for commit in batch {
        planned.push(plan(commit, &mut heads, &mut writes, at)?);
    }
    writes.keep_last_versions();
    write(&mut tx, &writes).await?;
    let ends = planned.iter().flatten().filter(|plan| plan.ended && !plan.give_up);
    let waiting: Vec<Uuid> = ends
        .map(|plan| plan.fence.session.as_uuid())
        .filter(|id| heads.get(id).is_some_and(|it| it.head.pending > 0))
        .collect();
    let mut successors = match waiting.is_empty() {
        true => HashMap::new(),
        false => by_session(dialect::head_runs(&mut tx, &waiting).await?),
    };
    let mut results = Vec::with_capacity(batch.len());
    for plan in planned {
        results.push(match plan {
            Ok(plan) => Ok(conclude(plan, &mut heads, &mut successors, at)?),
            Err(error) => Err(error),
        });
    }
    let changed: Vec<&LockedHead> = results
        .iter()
        .zip(batch)
        .filter(|(result, _)| result.is_ok())
        .filter_map(|(_, commit)| heads.get(&commit.fence.session.as_uuid()))
        .collect();
    if !changed.is_empty() {
        dialect::save_heads(&mut tx, &changed).await?;
    }
    let next = results.iter_mut().flatten().filter_map(|committed| committed.next.as_deref_mut());
    load_earlier_steps(&mut tx, next).await?;
    tx.commit().await.map_err(db)?;
    Ok(results)
}

/// Checks one commit and notes what it writes. The outer error is a fault that fails the whole batch.
fn plan(
    commit: &Commit,
    heads: &mut HashMap<Uuid, LockedHead>,
    writes: &mut Writes,
    at: Timestamp,
) -> Result<Result<Planned>> {
    let fence = commit.fence;
    let gone = || Error::new(Code::OwnershipLost, "the session is gone");
    let Some(locked) = heads.get_mut(&fence.session.as_uuid()) else {
        return Ok(Err(gone()));
    };
    if let Err(refusal) = locked.head.verify(&fence) {
        return Ok(Err(refusal));
    }
    if locked.head.current != Some(commit.run) {
        return Ok(Err(Error::new(Code::OwnershipLost, "the run is no longer the session's current one")));
    }
    if commit.events.iter().any(|event| event.body.terminal_state().is_some()) {
        return Ok(Err(Error::internal("a worker may not report the end of a run by itself")));
    }
    let mut events = commit.events.clone();
    if let Some(finish) = &commit.end {
        if !RunState::Running.allows(finish.end.state) || !finish.end.state.is_terminal() {
            return Ok(Err(Error::internal(format!("a run cannot end as {}", finish.end.state))));
        }
        // The one place that makes terminal events of executed runs: exactly one per run.
        let body = EventBody::for_end(finish.end.state, finish.end.failure.as_ref());
        events.extend(body.map(|body| NewEvent { run: Some(commit.run), at, body }));
        writes.finished.push(RunFinish {
            id: commit.run.as_uuid(),
            state: finish.end.state.to_db(),
            started_at: Some(DbTime(finish.started_at)),
            finished_at: DbTime(at),
            failure: finish.end.failure.as_ref().map(json).transpose()?,
            last_steps: if commit.steps.is_empty() { None } else { Some(json(&commit.steps)?) },
        });
        locked.head.retire(commit.run);
        locked.current_started_at = None;
    } else {
        for step in &commit.steps {
            writes.steps.push(StepWrite {
                run: commit.run.as_uuid(),
                id: step.id.as_uuid(),
                position: i32::try_from(step.index).unwrap_or(i32::MAX),
                json: json(step)?,
            });
        }
    }
    for message in &commit.messages {
        writes.messages.push(MessageWrite {
            id: MessageId::new().as_uuid(),
            session: fence.session.as_uuid(),
            run: commit.run.as_uuid(),
            role: message.role.as_str(),
            parts: json(&message.parts)?,
            created_at: DbTime(at),
        });
    }
    let (events, chunk) = append(locked, events)?;
    writes.chunks.extend(chunk);
    let give_up = commit.end.as_ref().is_some_and(|finish| finish.give_up);
    Ok(Ok(Planned { fence, events, ended: commit.end.is_some(), give_up }))
}

async fn write(connection: &mut Connection, writes: &Writes) -> Result<()> {
    if !writes.finished.is_empty() {
        dialect::finish_runs(connection, &writes.finished).await?;
    }
    if !writes.steps.is_empty() {
        dialect::save_steps(connection, &writes.steps).await?;
    }
    if !writes.messages.is_empty() {
        dialect::insert_messages(connection, &writes.messages).await?;
    }
    if !writes.chunks.is_empty() {
        dialect::append_chunks(connection, &writes.chunks).await?;
    }
    Ok(())
}

/// Moves an owner on to the next run, or takes the session from it when there is none.
fn conclude(
    plan: Planned,
    heads: &mut HashMap<Uuid, LockedHead>,
    successors: &mut HashMap<Uuid, HeadRunRow>,
    at: Timestamp,
) -> Result<Committed> {
    let mut committed = Committed { events: plan.events, next: None, released: false };
    if !plan.ended {
        return Ok(committed);
    }
    let session = plan.fence.session.as_uuid();
    let locked = heads.get_mut(&session).ok_or_else(|| Error::internal("a planned session is missing"))?;
    match successors.remove(&session).filter(HeadRunRow::is_runnable) {
        Some(row) => {
            let started_at = start(locked, row.id(), at);
            committed.next = Some(Box::new(grant(plan.fence, row, started_at, false)?));
        }
        None => {
            locked.head.release();
            committed.released = true;
        }
    }
    Ok(committed)
}

pub(super) async fn release(context: &Context, fence: &Fence) -> Result<()> {
    let mut tx = dialect::begin(&context.writer).await?;
    let mut heads = lock(&mut tx, std::iter::once(fence.session.as_uuid())).await?;
    let locked = heads
        .get_mut(&fence.session.as_uuid())
        .ok_or_else(|| Error::new(Code::OwnershipLost, "the session is gone"))?;
    locked.head.verify(fence)?;
    locked.head.release();
    dialect::save_heads(&mut tx, &[locked]).await?;
    tx.commit().await.map_err(db)
}
