//! Claims: granting sessions to workers.

use std::{collections::HashMap, time::Duration};

use remuda_domain::{
    Code, Error, Fence, Run, RunId, RunState, Timestamp, WorkerId,
    error::Result,
    session::{ClaimDecision, Owner},
    step::Step,
};
use uuid::Uuid;

use super::{
    dialect::{self, Connection},
    lock::{LockedSessions, WorkerLease, lock_with_leases},
    recover::{self, AttemptedRun, OwnershipEnd},
    spending,
    store::{ClaimRequest, Context, PostCommit},
    write_set::WriteSet,
};
use crate::{
    BudgetLimits, Claim, Grant,
    error::{db, parse},
    rows::{self, HeadRunRow, LockedHead, SessionSettings},
};

/// Grants ownership of many sessions in one transaction.
pub(crate) async fn claim_batch(context: &Context, batch: &[ClaimRequest]) -> Result<Vec<Result<Claim>>> {
    let mut tx = dialect::begin(&context.writer).await?;
    let (claims, post_commit) = claim_in_transaction(&mut tx, context, batch).await?;
    tx.commit().await.map_err(db)?;
    post_commit.apply(context);
    Ok(claims)
}

/// Grants ownership of many sessions within the caller's transaction.
pub(super) async fn claim_in_transaction(
    tx: &mut Connection,
    context: &Context,
    batch: &[ClaimRequest],
) -> Result<(Vec<Result<Claim>>, PostCommit)> {
    let sessions = batch.iter().map(|request| request.session.as_uuid());
    let askers = batch.iter().map(|request| request.worker.as_uuid());
    let (locked, leases) = lock_with_leases(tx, sessions, askers).await?;
    let ids: Vec<Uuid> = locked.heads.keys().copied().collect();
    let runs = by_session(dialect::head_runs(tx, &ids).await?);
    let is_lost =
        |id: &Uuid| locked.heads.get(id).is_some_and(|it| matches!(it.head.owner, Owner::Expired { .. }));
    let lost: Vec<Uuid> = ids.iter().copied().filter(is_lost).collect();
    let lost = recover::current_runs(tx, &locked.heads, &lost).await?;
    let mut batch_state = ClaimBatch {
        context,
        locked,
        leases,
        runs,
        lost,
        writes: WriteSet::default(),
        answered: HashMap::new(),
        repeated_claims: Vec::new(),
    };
    let mut claims = Vec::with_capacity(batch.len());
    for request in batch {
        claims.push(batch_state.decide(request)?);
    }
    batch_state.writes.save_heads(&batch_state.locked, batch_state.answered.into_keys());
    let post_commit = batch_state.writes.write(tx).await?;
    let granted = claims.iter_mut().flatten().filter_map(grant_mut);
    load_earlier_steps(tx, granted, &batch_state.repeated_claims).await?;
    for grant in claims.iter_mut().flatten().filter_map(grant_mut) {
        load_budgets(tx, grant).await?;
    }
    Ok((claims, post_commit))
}

/// Decides the claims of one batch.
struct ClaimBatch<'a> {
    context: &'a Context,
    locked: LockedSessions,
    leases: HashMap<Uuid, WorkerLease>,
    runs: HashMap<Uuid, HeadRunRow>,
    /// Current runs of sessions whose owner's lease has expired.
    lost: HashMap<Uuid, AttemptedRun>,
    writes: WriteSet,
    /// Changed sessions and their new owner: a second claim of the same session in this batch is refused.
    answered: HashMap<Uuid, (WorkerId, Duration)>,
    /// Runs that the claiming worker already had: the response to its first claim was lost.
    repeated_claims: Vec<RunId>,
}

impl ClaimBatch<'_> {
    /// Decides one claim. The outer error is a fault that fails the whole batch.
    fn decide(&mut self, request: &ClaimRequest) -> Result<Result<Claim>> {
        let session = request.session.as_uuid();
        // Without a lease the worker could lose the session again before it starts.
        let lease = self.leases.get(&request.worker.as_uuid());
        let Some(WorkerLease { owner: Owner::Alive { lease_left, .. }, pool }) = lease else {
            return Ok(Err(Error::new(Code::OwnershipLost, "the worker's lease has ended")));
        };
        let lease_left = *lease_left;
        let at = self.locked.at;
        let locked = self.locked.heads.get_mut(&session).filter(|it| it.head.tenant == request.tenant);
        let Some(locked) = locked else {
            return Ok(Ok(Claim::NothingToDo));
        };
        // Anybody on the bus may have sent the token.
        if locked.head.pool.as_str() != pool {
            return Ok(Ok(Claim::OtherPool));
        }
        if let Some(&(owner, retry_after)) = self.answered.get(&session) {
            return Ok(Ok(Claim::Refused { owner, retry_after }));
        }
        // A parked run blocks its session's queue but needs no worker.
        let Some(row) = self.runs.remove(&session).filter(HeadRunRow::is_runnable) else {
            return Ok(Ok(Claim::NothingToDo));
        };
        if matches!(locked.head.owner, Owner::Expired { .. }) {
            let lost = self.lost.remove(&session);
            let ended_ownership =
                recover::end_ownership(self.context, locked, lost, OwnershipEnd::Lost, at, &mut self.writes)?;
            self.answered.insert(session, (request.worker, Duration::ZERO));
            return Ok(Ok(Claim::Reclaimed(ended_ownership.session_change(locked))));
        }
        Ok(Ok(match locked.head.claim(request.worker) {
            ClaimDecision::NothingToDo => Claim::NothingToDo,
            ClaimDecision::Refused { owner, retry_after } => {
                self.runs.insert(session, row);
                Claim::Refused { owner, retry_after }
            }
            ClaimDecision::Granted { fence } => {
                self.answered.insert(session, (request.worker, lease_left));
                self.repeated_claims.extend(locked.head.current);
                Claim::Granted(Box::new(grant(locked, fence, row, at)?))
            }
        }))
    }
}

fn grant_mut(claim: &mut Claim) -> Option<&mut Grant> {
    match claim {
        Claim::Granted(grant) => Some(grant),
        Claim::Refused { .. } | Claim::NothingToDo | Claim::OtherPool | Claim::Reclaimed(_) => None,
    }
}

pub(super) fn by_session(rows: Vec<HeadRunRow>) -> HashMap<Uuid, HeadRunRow> {
    rows.into_iter().map(|row| (row.run.session_id, row)).collect()
}

/// Makes the head run the current one and returns the grant for the owner.
pub(super) fn grant(locked: &mut LockedHead, fence: Fence, row: HeadRunRow, at: Timestamp) -> Result<Grant> {
    // `load_budgets` fills in the limits.
    let budgeted = row.is_budgeted().then(BudgetLimits::default);
    let run = row.run.into_run()?;
    Ok(Grant { budgeted, ..grant_run(locked, fence, run, row.settings, at)? })
}

/// Makes a run the current one and returns the grant for the owner. A run that started before keeps its start time.
pub(super) fn grant_run(
    locked: &mut LockedHead,
    fence: Fence,
    mut run: Run,
    settings: SessionSettings,
    at: Timestamp,
) -> Result<Grant> {
    let already_current = locked.head.current == Some(run.id);
    let execution = rows::execution(settings.execution.as_deref())?;
    let permissions = rows::permissions(settings.permissions.as_deref())?;
    // A repeated claim, after the first response was lost, is not a second attempt.
    run.attempt += u32::from(!already_current);
    let started_at = run.started_at.unwrap_or(at);
    run.state = RunState::Running;
    run.started_at = Some(started_at);
    locked.head.current = Some(run.id);
    locked.current_started_at = Some(started_at);
    let time_left = run.time_left();
    Ok(Grant {
        fence,
        run,
        time_left,
        steps: Vec::new(),
        workspace_root: settings.root,
        execution,
        agent: settings.agent,
        model: settings.model,
        permissions,
        depth: u32::try_from(settings.depth).unwrap_or(0),
        at,
        following: Vec::new(),
        budgeted: None,
    })
}

/// Loads which resources the covering budgets limit. Runs no query if no budget covers the run.
pub(super) async fn load_budgets(connection: &mut Connection, grant: &mut Grant) -> Result<()> {
    let Some(budgeted) = &mut grant.budgeted else { return Ok(()) };
    let run = grant.run.id.as_uuid();
    let ids = spending::covering_budgets(connection, &[run]).await?;
    let budgets = spending::load(connection, &ids).await?;
    *budgeted = spending::limits(&budgets).unwrap_or_default();
    grant.run.budget = budgets.get(&run).copied();
    Ok(())
}

/// Loads the steps that earlier owners committed. A first attempt has none, unless the same worker claimed it before
/// (`repeated_claims`).
pub(super) async fn load_earlier_steps<'a>(
    connection: &mut Connection,
    grants: impl Iterator<Item = &'a mut Grant>,
    repeated_claims: &[RunId],
) -> Result<()> {
    let may_have_steps =
        |grant: &&mut Grant| grant.run.attempt > 1 || repeated_claims.contains(&grant.run.id);
    let mut resumed: HashMap<RunId, &mut Grant> =
        grants.filter(may_have_steps).map(|grant| (grant.run.id, grant)).collect();
    if resumed.is_empty() {
        return Ok(());
    }
    let ids: Vec<Uuid> = resumed.keys().map(|run| run.as_uuid()).collect();
    for row in dialect::load_steps(connection, &ids).await? {
        let step: Step = parse("step", &row.step)?;
        if let Some(grant) = resumed.get_mut(&RunId::from_uuid(row.run_id)) {
            grant.steps.push(step);
        }
    }
    Ok(())
}
