//! Submits: accepting runs.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use chrono::TimeDelta;
use remuda_domain::{
    Appended, Code, Error, Run, RunId, TenantId, Timestamp,
    budget::{Amount, Budget},
    error::Result,
    run::IfBusy,
};
use uuid::Uuid;

use super::{
    cancel::{self, Stopper},
    descendants,
    dialect::{self, Connection},
    lock::{LockedSessions, lock, lock_with_leases},
    park, placement, runs,
    store::{Context, PostCommit},
    write_set::WriteSet,
};
use crate::{
    CancelledRuns, NewRun, Submitted,
    error::{conflict, db},
    row_writes::BudgetInsert,
    rows::{KeyedRun, LockedHead},
    time::{DbTime, now},
};

pub(super) fn session_not_found() -> Error {
    Error::new(Code::SessionNotFound, "there is no such session").at("session")
}

pub(super) enum SubmitOutcome {
    Accepted(Box<AcceptedRun>),
    /// An earlier request with the same key created this run.
    Replay(RunId),
    Refused(Error),
}

/// A run that its session has admitted.
pub(super) struct AcceptedRun {
    pub(super) run: Run,
    events: Appended,
}

impl AcceptedRun {
    /// The answer to the caller, once the session's head has its final state.
    pub(super) fn submitted(self, locked: &LockedHead) -> Submitted {
        Submitted {
            run: self.run,
            deduplicated: false,
            change: placement::session_change(locked, self.events),
            interrupted: Vec::new(),
            signal: None,
            descendants: CancelledRuns::default(),
        }
    }
}

fn missing_session() -> Error {
    Error::internal("run accepted without its session")
}

/// Accepts many runs in one transaction; each gets its own result.
pub(crate) async fn submit_batch(context: &Context, batch: &[NewRun]) -> Result<Vec<Result<Submitted>>> {
    let mut tx = dialect::begin(&context.writer).await?;
    let (results, post_commit) = submit_in_transaction(&mut tx, context, batch).await?;
    tx.commit().await.map_err(db)?;
    post_commit.apply(context);
    Ok(results)
}

/// Accepts many runs within the caller's transaction.
pub(super) async fn submit_in_transaction(
    tx: &mut Connection,
    context: &Context,
    batch: &[NewRun],
) -> Result<(Vec<Result<Submitted>>, PostCommit)> {
    let mut locked = lock(tx, batch.iter().map(|new| new.run.session.as_uuid())).await?;
    let mut keys = IdempotencyKeys::load(tx, batch).await?;
    let mut accepted = WriteSet::default();
    let mut answers = Vec::with_capacity(batch.len());
    for run in batch {
        answers.push(accept(context, run, &mut locked, &mut keys, &mut accepted)?);
    }
    let post_commit = write(tx, context, &locked, keys, accepted).await?;
    // Replays are read last: this batch itself may have inserted the run.
    let mut results = Vec::with_capacity(batch.len());
    for (request, answer) in batch.iter().zip(answers) {
        results.push(match answer {
            SubmitOutcome::Accepted(accepted) => {
                let head = locked.heads.get(&accepted.run.session.as_uuid()).ok_or_else(missing_session)?;
                Ok(accepted.submitted(head))
            }
            SubmitOutcome::Refused(error) => Err(error),
            // A failed statement aborts the whole transaction, so its error fails the batch.
            SubmitOutcome::Replay(run) => match replay(tx, request.run.tenant, run).await {
                Err(error) if error.code() == Code::RunNotFound => Err(error),
                outcome => Ok(outcome?),
            },
        });
    }
    Ok((results, post_commit))
}

/// Whether a request needs nothing but the session's head to be decided.
pub(super) fn is_simple(request: &NewRun) -> bool {
    request.idempotency.is_none() && request.budget.is_none()
}

pub(super) fn accept(
    context: &Context,
    request: &NewRun,
    locked: &mut LockedSessions,
    keys: &mut IdempotencyKeys,
    accepted: &mut WriteSet,
) -> Result<SubmitOutcome> {
    let at = locked.at;
    let NewRun { run, if_busy, idempotency, budget } = request;
    let locked = locked.heads.get_mut(&run.session.as_uuid()).filter(|it| it.head.tenant == run.tenant);
    let Some(locked) = locked else {
        return Ok(SubmitOutcome::Refused(session_not_found()));
    };
    // A retry of an accepted request returns its run even if the session accepts no new runs.
    if let Some(answer) = keys.outcome_of_earlier(request) {
        return Ok(answer);
    }
    let seq = match locked.head.admit(*if_busy, context.max_pending) {
        Ok(seq) => seq,
        Err(refusal) => return Ok(SubmitOutcome::Refused(refusal)),
    };
    keys.remember(request);
    let run = Run {
        seq,
        created_at: at,
        idempotency_key: idempotency.as_ref().map(|it| it.key.clone()),
        budget: budget.map(|limit| Budget { limit, ..Budget::default() }),
        ..run.clone()
    };
    accepted.budgets.extend(budget.map(|limit| BudgetInsert {
        id: run.id.as_uuid(),
        tenant: run.tenant.as_uuid(),
        parent: None,
        limit,
        spent: Amount::default(),
    }));
    let events = accepted.queue(&run, run.budget.map(|_| run.id.as_uuid()), locked, Vec::new())?;
    Ok(SubmitOutcome::Accepted(Box::new(AcceptedRun { run, events })))
}

/// Accepts a run and cancels all other unfinished runs of the session, in one transaction.
pub(crate) async fn submit_interrupting(context: &Context, request: &NewRun) -> Result<Submitted> {
    let mut tx = dialect::begin(&context.writer).await?;
    let session = std::iter::once(request.run.session.as_uuid());
    let (mut locked, _) = lock_with_leases(&mut tx, session, std::iter::empty()).await?;
    let mut keys = IdempotencyKeys::load(&mut tx, std::slice::from_ref(request)).await?;
    if let Some(SubmitOutcome::Replay(run)) = keys.outcome_of_earlier(request) {
        return replay(&mut tx, request.run.tenant, run).await;
    }
    let mut accepted = WriteSet::default();
    let (at, reason) = (locked.at, "interrupted by a newer run");
    let has_related = locked.heads.values().any(|it| it.has_related);
    let mut stopper = Stopper { context, reason, at, writes: &mut accepted };
    let stopped =
        cancel::stop_all(&mut tx, &mut stopper, &mut locked, request.run.session, request.run.tenant).await?;
    let enqueue = NewRun { if_busy: IfBusy::Enqueue, ..request.clone() };
    let new = match accept(context, &enqueue, &mut locked, &mut keys, &mut accepted)? {
        SubmitOutcome::Accepted(new) => *new,
        SubmitOutcome::Refused(error) => return Err(error),
        SubmitOutcome::Replay(run) => return replay(&mut tx, request.run.tenant, run).await,
    };
    let head = locked.heads.get(&new.run.session.as_uuid()).ok_or_else(missing_session)?;
    let mut events = stopped.events;
    events.extend(new.events);
    let mut submitted = AcceptedRun { events, ..new }.submitted(head);
    submitted.interrupted = stopped.runs;
    submitted.signal = stopped.signal;
    submitted.change.lost = stopped.lost;
    let parents = std::mem::take(&mut accepted.parents);
    let post_commit = write(&mut tx, context, &locked, keys, accepted).await?;
    tx.commit().await.map_err(db)?;
    post_commit.apply(context);
    if has_related {
        let roots: Vec<Uuid> = submitted.interrupted.iter().map(|run| run.as_uuid()).collect();
        descendants::cancel_best_effort(context, &roots, reason, &mut submitted.descendants).await;
        submitted.descendants.changes.extend(park::resume_all_ready(context, &parents).await);
    }
    Ok(submitted)
}

async fn write(
    connection: &mut Connection,
    context: &Context,
    locked: &LockedSessions,
    keys: IdempotencyKeys,
    mut accepted: WriteSet,
) -> Result<PostCommit> {
    if accepted.runs.is_empty() {
        return Ok(PostCommit::default());
    }
    keys.write(connection, context.idempotency_ttl).await?;
    let sessions: HashSet<Uuid> = accepted.runs.iter().map(|run| run.session_id).collect();
    accepted.save_heads(locked, sessions);
    accepted.write(connection).await
}

/// The idempotency keys of a batch: stored ones, and new ones.
#[derive(Default)]
pub(super) struct IdempotencyKeys {
    known: HashMap<(Uuid, String), KeyedRun>,
    new: Vec<KeyedRun>,
}

impl IdempotencyKeys {
    async fn load(connection: &mut Connection, batch: &[NewRun]) -> Result<Self> {
        let key = |run: &'_ NewRun| Some((run.run.tenant.as_uuid(), run.idempotency.as_ref()?.key.clone()));
        let keys: HashSet<(Uuid, String)> = batch.iter().filter_map(key).collect();
        let keys: Vec<(Uuid, &str)> = keys.iter().map(|(tenant, key)| (*tenant, key.as_str())).collect();
        let found = match keys.is_empty() {
            true => Vec::new(),
            false => dialect::find_keys(connection, &keys).await?,
        };
        let known = found.into_iter().map(|it| ((it.tenant_id, it.key.clone()), it)).collect();
        Ok(Self { known, new: Vec::new() })
    }

    /// The outcome for a request whose key was used before.
    fn outcome_of_earlier(&self, request: &NewRun) -> Option<SubmitOutcome> {
        let idempotency = request.idempotency.as_ref()?;
        let earlier = self.known.get(&(request.run.tenant.as_uuid(), idempotency.key.clone()))?;
        if earlier.request_hash == idempotency.request_hash {
            return Some(SubmitOutcome::Replay(RunId::from_uuid(earlier.run_id)));
        }
        let conflict = Error::new(Code::IdempotencyConflict, "the key was used before with another request");
        Some(SubmitOutcome::Refused(conflict.at("idempotency_key")))
    }

    fn remember(&mut self, request: &NewRun) {
        let Some(idempotency) = &request.idempotency else {
            return;
        };
        let keyed = KeyedRun {
            tenant_id: request.run.tenant.as_uuid(),
            key: idempotency.key.clone(),
            request_hash: idempotency.request_hash.to_vec(),
            run_id: request.run.id.as_uuid(),
        };
        self.known.insert((keyed.tenant_id, keyed.key.clone()), keyed.clone());
        self.new.push(keyed);
    }

    async fn write(mut self, connection: &mut Connection, ttl: Duration) -> Result<()> {
        if self.new.is_empty() {
            return Ok(());
        }
        let ttl = TimeDelta::from_std(ttl).unwrap_or(TimeDelta::MAX);
        let expires = DbTime(now().checked_add_signed(ttl).unwrap_or(Timestamp::MAX_UTC));
        self.new.sort_unstable_by(|a, b| (a.tenant_id, &a.key).cmp(&(b.tenant_id, &b.key)));
        let inserted = dialect::insert_keys(connection, &self.new, expires).await?;
        // A concurrent transaction used one of the keys for another session: the retry finds it.
        if usize::try_from(inserted) != Ok(self.new.len()) {
            return Err(conflict());
        }
        Ok(())
    }
}

async fn replay(connection: &mut Connection, tenant: TenantId, run: RunId) -> Result<Submitted> {
    let run = runs::load(connection, tenant, run).await?;
    let locked = lock(connection, std::iter::once(run.session.as_uuid())).await?;
    let head = locked.heads.get(&run.session.as_uuid()).ok_or_else(session_not_found)?;
    // The wake-up of the first request may have failed.
    let replayed = AcceptedRun { run, events: Appended::default() }.submitted(head);
    Ok(Submitted { deduplicated: true, ..replayed })
}
