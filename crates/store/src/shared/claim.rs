//! Giving sessions to workers.

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
    lock::{Locked, lock_with_leases},
    recover::{self, Attempted, Parting},
    spending,
    store::{Aftermath, ClaimRequest, Context},
    writes::{self, Writes},
};
use crate::{
    Budgeted, Claim, Grant,
    error::{db, parse},
    rows::{self, HeadRunRow, LockedHead},
};

/// Grants ownership of many sessions in one transaction.
pub(crate) async fn claim_batch(context: &Context, batch: &[ClaimRequest]) -> Result<Vec<Result<Claim>>> {
    let mut tx = dialect::begin(&context.writer).await?;
    let (claims, aftermath) = claim_within(&mut tx, context, batch).await?;
    tx.commit().await.map_err(db)?;
    aftermath.tell(context);
    Ok(claims)
}

/// The same within a transaction.
pub(super) async fn claim_within(
    tx: &mut Connection,
    context: &Context,
    batch: &[ClaimRequest],
) -> Result<(Vec<Result<Claim>>, Aftermath)> {
    let sessions = batch.iter().map(|request| request.session.as_uuid());
    let askers = batch.iter().map(|request| request.worker.as_uuid());
    let (locked, leases) = lock_with_leases(tx, sessions, askers).await?;
    let ids: Vec<Uuid> = locked.heads.keys().copied().collect();
    let runs = by_session(dialect::head_runs(tx, &ids).await?);
    let is_lost =
        |id: &Uuid| locked.heads.get(id).is_some_and(|it| matches!(it.head.owner, Owner::Expired { .. }));
    let lost: Vec<Uuid> = ids.iter().copied().filter(is_lost).collect();
    let lost = recover::current_runs(tx, &locked.heads, &lost).await?;
    let mut office = Office {
        context,
        locked,
        leases,
        runs,
        lost,
        writes: Writes::default(),
        answered: HashMap::new(),
        asked_again: Vec::new(),
    };
    let mut claims = Vec::with_capacity(batch.len());
    for request in batch {
        claims.push(office.decide(request)?);
    }
    let news = std::mem::take(&mut office.writes.news);
    let counts = office.writes.write(tx).await?;
    writes::save(tx, &office.locked.heads, office.answered.into_keys()).await?;
    let granted = claims.iter_mut().flatten().filter_map(granted_run);
    load_earlier_steps(tx, granted, &office.asked_again).await?;
    for grant in claims.iter_mut().flatten().filter_map(granted_run) {
        load_budgets(tx, grant).await?;
    }
    Ok((claims, Aftermath { news, counts }))
}

/// Decides about the claims of one batch.
struct Office<'a> {
    context: &'a Context,
    locked: Locked,
    leases: HashMap<Uuid, Owner>,
    runs: HashMap<Uuid, HeadRunRow>,
    /// Runs of workers that are gone.
    lost: HashMap<Uuid, Attempted>,
    writes: Writes,
    /// Sessions that changed, and who has them now: a second request for one in the same batch has to wait.
    answered: HashMap<Uuid, (WorkerId, Duration)>,
    /// Runs that their worker had already: the answer to its first claim was lost.
    asked_again: Vec<RunId>,
}

impl Office<'_> {
    /// The outer error is a fault that fails the whole batch.
    fn decide(&mut self, request: &ClaimRequest) -> Result<Result<Claim>> {
        let session = request.session.as_uuid();
        // What is given to a worker without a lease could be taken from it at once, while it begins.
        let Some(Owner::Alive { lease_left, .. }) = self.leases.get(&request.worker.as_uuid()).copied()
        else {
            return Ok(Err(Error::new(Code::OwnershipLost, "the worker's lease has ended")));
        };
        let at = self.locked.at;
        let locked = self.locked.heads.get_mut(&session).filter(|it| it.head.tenant == request.tenant);
        let Some(locked) = locked else {
            return Ok(Ok(Claim::NothingToDo));
        };
        if let Some(&(owner, retry_after)) = self.answered.get(&session) {
            return Ok(Ok(Claim::Refused { owner, retry_after }));
        }
        // A parked run holds its session's line but needs no worker.
        let Some(row) = self.runs.remove(&session).filter(HeadRunRow::is_runnable) else {
            return Ok(Ok(Claim::NothingToDo));
        };
        if matches!(locked.head.owner, Owner::Expired { .. }) {
            let lost = self.lost.remove(&session);
            let parted = recover::part(self.context, locked, lost, Parting::Lost, at, &mut self.writes)?;
            self.answered.insert(session, (request.worker, Duration::ZERO));
            return Ok(Ok(Claim::TakenBack(parted.change(locked))));
        }
        Ok(Ok(match locked.head.claim(request.worker) {
            ClaimDecision::NothingToDo => Claim::NothingToDo,
            ClaimDecision::Refused { owner, retry_after } => {
                self.runs.insert(session, row);
                Claim::Refused { owner, retry_after }
            }
            ClaimDecision::Granted { fence } => {
                self.answered.insert(session, (request.worker, lease_left));
                self.asked_again.extend(locked.head.current);
                Claim::Granted(Box::new(grant(locked, fence, row, at)?))
            }
        }))
    }
}

fn granted_run(claim: &mut Claim) -> Option<&mut Grant> {
    match claim {
        Claim::Granted(grant) => Some(grant),
        Claim::Refused { .. } | Claim::NothingToDo | Claim::TakenBack(_) => None,
    }
}

pub(super) fn by_session(rows: Vec<HeadRunRow>) -> HashMap<Uuid, HeadRunRow> {
    rows.into_iter().map(|row| (row.run.session_id, row)).collect()
}

/// Makes the run at the head of a line the current one and gives it to the owner.
pub(super) fn grant(locked: &mut LockedHead, fence: Fence, row: HeadRunRow, at: Timestamp) -> Result<Grant> {
    // What exactly it is follows in `load_budgets`.
    let budgeted = row.is_budgeted().then(Budgeted::default);
    let HeadRunRow { run, root, execution, agent, model, permissions, depth, .. } = row;
    let around = Surroundings { root, execution, agent, model, permissions, depth };
    Ok(Grant { budgeted, ..grant_run(locked, fence, run.into_run()?, around, at)? })
}

/// What a worker has to know of a session to work there.
#[derive(Clone, Debug)]
pub(super) struct Surroundings {
    pub(super) root: String,
    pub(super) execution: Option<String>,
    pub(super) agent: Option<String>,
    pub(super) model: Option<String>,
    pub(super) permissions: Option<String>,
    pub(super) depth: i32,
}

/// Makes a run the current one and gives it to the owner. A run that started before keeps that time.
pub(super) fn grant_run(
    locked: &mut LockedHead,
    fence: Fence,
    mut run: Run,
    around: Surroundings,
    at: Timestamp,
) -> Result<Grant> {
    let already_current = locked.head.current == Some(run.id);
    let execution = rows::execution(around.execution.as_deref())?;
    let permissions = rows::permissions(around.permissions.as_deref())?;
    // The worker may ask twice for what it has, because the first answer was lost: that is no second attempt.
    run.attempt += u32::from(!already_current);
    let started_at = run.started_at.unwrap_or(at);
    run.state = RunState::Running;
    run.started_at = Some(started_at);
    locked.head.current = Some(run.id);
    locked.current_started_at = Some(started_at);
    let time_left = run.deadline().and_then(|deadline| (deadline - at).to_std().ok()).unwrap_or_default();
    Ok(Grant {
        fence,
        run,
        time_left,
        steps: Vec::new(),
        workspace_root: around.root,
        execution,
        agent: around.agent,
        model: around.model,
        permissions,
        depth: u32::try_from(around.depth).unwrap_or(0),
        at,
        following: Vec::new(),
        budgeted: None,
    })
}

/// Finds out what the budgets limit that cover a run. Costs nothing where there are none.
pub(super) async fn load_budgets(connection: &mut Connection, grant: &mut Grant) -> Result<()> {
    let Some(budgeted) = &mut grant.budgeted else { return Ok(()) };
    let run = grant.run.id.as_uuid();
    let ids = spending::covering(connection, &[run]).await?;
    let budgets = spending::load(connection, &ids).await?;
    *budgeted = spending::budgeted(&budgets).unwrap_or_default();
    grant.run.budget = budgets.get(&run).copied();
    Ok(())
}

/// Loads what earlier owners committed. A first attempt has no steps, unless the same worker `asked_again` for it.
pub(super) async fn load_earlier_steps<'a>(
    connection: &mut Connection,
    grants: impl Iterator<Item = &'a mut Grant>,
    asked_again: &[RunId],
) -> Result<()> {
    let may_have_steps = |grant: &&mut Grant| grant.run.attempt > 1 || asked_again.contains(&grant.run.id);
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
