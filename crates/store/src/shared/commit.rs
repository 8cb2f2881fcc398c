//! Commits: owners write progress, ends, hand-overs and parks.

use std::collections::{HashMap, HashSet};

use remuda_domain::{
    Appended, Code, Error, RunId, RunState, SessionId, error::Result, run::ParkReason, session::Write,
};
use uuid::Uuid;

use super::{
    children::{self, NewChildren},
    claim::{by_session, grant, load_budgets, load_earlier_steps},
    commit_rows,
    dialect::{self, Connection},
    lock::{LockedSessions, lock},
    park,
    recover::{self, AttemptedRun, OwnershipEnd},
    related_rows::{self, RelatedRows},
    spending,
    store::{Context, PostCommit},
    successors,
    write_set::WriteSet,
};
use crate::{
    BudgetLimits, Commit, Committed, RunTransition, SessionChange,
    error::db,
    rows::{HeadRunRow, LockedHead},
};

/// A commit that passed its checks and whose rows are collected.
pub(super) struct PlannedCommit {
    session: Uuid,
    events: Appended,
    action: NextAction,
    children: Vec<SessionChange>,
    /// How many runs end with it: none, this one, or this one and some successors.
    ended: usize,
    parent: Option<RunId>,
}

impl PlannedCommit {
    /// How many runs end with it.
    pub(super) fn ended(&self) -> usize {
        self.ended
    }

    fn new(commit: &Commit, action: NextAction) -> Self {
        let session = commit.fence.session.as_uuid();
        Self { session, events: Appended::default(), action, children: Vec::new(), ended: 0, parent: None }
    }
}

/// What to do with the session after all writes of the batch are known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NextAction {
    /// The run continues.
    Continue,
    /// Grant the next run of the session, if there is one.
    GrantNext,
    /// The session was released.
    Released,
    /// The commit was done before; only its response has to be computed again.
    Replay,
}

/// The data that the commits of a batch need, beside the session heads.
#[derive(Default)]
pub(super) struct CommitContext {
    /// Current runs whose owners release them.
    current: HashMap<Uuid, AttemptedRun>,
    /// Related rows of ending runs. Missing for runs without any.
    related: HashMap<Uuid, RelatedRows>,
    new_children: NewChildren,
    /// Runs whose wait is already satisfied.
    already_satisfied: HashSet<RunId>,
    /// Successors that are still queued and can be ended.
    queued: HashSet<Uuid>,
    /// Whether budgets cover some of the runs that spend.
    limited: bool,
}

impl CommitContext {
    /// For small ends without related rows, with the successors that are still queued.
    pub(super) fn for_small_ends(queued: HashSet<Uuid>) -> Self {
        Self { queued, ..Self::default() }
    }

    async fn load(connection: &mut Connection, batch: &[Commit], locked: &LockedSessions) -> Result<Self> {
        let releasing = batch
            .iter()
            .filter(|commit| matches!(commit.then, RunTransition::HandOver | RunTransition::Park(_)));
        let releasing: Vec<Uuid> = releasing.map(|commit| commit.fence.session.as_uuid()).collect();
        let has_related =
            |session: SessionId| locked.heads.get(&session.as_uuid()).is_some_and(|it| it.has_related);
        let ending = batch
            .iter()
            .filter(|it| matches!(it.then, RunTransition::End(_)) && has_related(it.fence.session));
        let ending: Vec<Uuid> = ending.map(|commit| commit.run.as_uuid()).collect();
        let limited = lock_budgets(connection, batch).await?;
        let mut already_satisfied = HashSet::new();
        for commit in batch {
            let RunTransition::Park(park_request) = &commit.then else { continue };
            let children = commit.children.iter().map(|child| child.run.id.as_uuid());
            let made = children.chain(commit.approvals.iter().map(|it| it.id.as_uuid())).collect();
            if park::is_satisfied(connection, commit.run, park_request, &made).await? {
                already_satisfied.insert(commit.run);
            }
        }
        Ok(Self {
            current: recover::current_runs(connection, &locked.heads, &releasing).await?,
            related: related_rows::load(connection, &ending).await?,
            new_children: NewChildren::load(connection, batch).await?,
            already_satisfied,
            queued: successors::still_queued(connection, batch).await?,
            limited,
        })
    }
}

/// Locks all budgets that the batch reads or changes at once, so that batches cannot deadlock. Returns whether there
/// are any.
async fn lock_budgets(connection: &mut Connection, batch: &[Commit]) -> Result<bool> {
    let waits_for_budget = |then: &RunTransition| matches!(then, RunTransition::Park(park_request) if park_request.reason == ParkReason::Budget);
    let spending = batch.iter().filter(|commit| !commit.spent.is_empty() || waits_for_budget(&commit.then));
    let spending: Vec<Uuid> = spending.map(|commit| commit.run.as_uuid()).collect();
    if spending.is_empty() {
        return Ok(false);
    }
    let budgets = spending::covering_budgets(connection, &spending).await?;
    if !budgets.is_empty() {
        dialect::lock_budgets(connection, &budgets).await?;
    }
    Ok(!budgets.is_empty())
}

/// The limits of a run that continues and reported costs.
async fn budgeted(connection: &mut Connection, commit: &Commit) -> Result<Option<BudgetLimits>> {
    if commit.spent.is_empty() || !matches!(commit.then, RunTransition::Continue) {
        return Ok(None);
    }
    let budgets = spending::covering_budgets(connection, &[commit.run.as_uuid()]).await?;
    Ok(spending::limits(&spending::load(connection, &budgets).await?))
}

/// Writes the commits of a batch in one transaction; each gets its own result.
pub(crate) async fn commit_batch(context: &Context, batch: &[Commit]) -> Result<Vec<Result<Committed>>> {
    let mut tx = dialect::begin(&context.writer).await?;
    let (results, post_commit) = commit_in_transaction(&mut tx, context, batch).await?;
    tx.commit().await.map_err(db)?;
    post_commit.apply(context);
    Ok(results)
}

/// Writes the commits of a batch within the caller's transaction.
pub(super) async fn commit_in_transaction(
    tx: &mut Connection,
    context: &Context,
    batch: &[Commit],
) -> Result<(Vec<Result<Committed>>, PostCommit)> {
    let mut locked = lock(tx, sessions_of(batch).into_iter()).await?;
    let mut loaded = CommitContext::load(tx, batch, &locked).await?;
    let mut writes = WriteSet::default();
    let mut planned = Vec::with_capacity(batch.len());
    for commit in batch {
        planned.push(plan(context, commit, &mut locked, &mut loaded, &mut writes)?);
    }
    // Before the successors are read.
    let post_commit = writes.write(tx).await?;
    let moving = planned
        .iter()
        .flatten()
        .filter(|plan| matches!(plan.action, NextAction::GrantNext | NextAction::Replay));
    let waiting: Vec<Uuid> = moving
        .map(|plan| plan.session)
        .filter(|id| locked.heads.get(id).is_some_and(|it| it.head.pending > 0))
        .collect();
    let mut successors = match waiting.is_empty() {
        true => HashMap::new(),
        false => by_session(dialect::head_runs(tx, &waiting).await?),
    };
    let ended_with_live_children = ended_with_live_children(tx, &planned, batch, &locked).await?;
    let mut results = Vec::with_capacity(batch.len());
    for (plan, commit) in planned.into_iter().zip(batch) {
        results.push(match plan {
            Ok(plan) => {
                let has_children =
                    plan.ended() > 0 && ended_with_live_children.contains(&commit.run.as_uuid());
                let successor = successors.remove(&commit.fence.session.as_uuid());
                let successor = successor.filter(HeadRunRow::is_runnable);
                let committed = conclude(plan, commit, &mut locked, successor)?;
                Ok(Committed { has_children, ..committed })
            }
            Err(error) => Err(error),
        });
    }
    let accepted =
        results.iter().zip(batch).filter_map(|(result, commit)| Some((result.as_ref().ok()?, commit)));
    let changed: Vec<Uuid> = accepted
        .flat_map(|(committed, commit)| {
            let children = committed.children.iter().map(|child| child.session.as_uuid());
            std::iter::once(commit.fence.session.as_uuid()).chain(children)
        })
        .collect();
    let mut heads = WriteSet::default();
    heads.save_heads(&locked, changed);
    heads.write(tx).await?;
    let next = results.iter_mut().flatten().filter_map(|committed| committed.next.as_deref_mut());
    load_earlier_steps(tx, next, &[]).await?;
    for (result, commit) in results.iter_mut().zip(batch) {
        let Ok(committed) = result else { continue };
        if let Some(next) = committed.next.as_deref_mut() {
            load_budgets(tx, next).await?;
            next.following = successors::load_following(tx, next, commit.prefetch).await?;
        }
        if loaded.limited {
            committed.budgeted = budgeted(tx, commit).await?;
        }
    }
    Ok((results, post_commit))
}

/// The sessions of a batch, including those of children, whether they exist or not.
fn sessions_of(batch: &[Commit]) -> Vec<Uuid> {
    let sessions = batch.iter().flat_map(|commit| {
        let children = commit.children.iter().map(|child| child.run.session.as_uuid());
        std::iter::once(commit.fence.session.as_uuid()).chain(children)
    });
    sessions.collect()
}

/// Ended runs with unfinished children.
async fn ended_with_live_children(
    connection: &mut Connection,
    planned: &[Result<PlannedCommit>],
    batch: &[Commit],
    locked: &LockedSessions,
) -> Result<HashSet<Uuid>> {
    let ended = planned.iter().zip(batch).filter(|(plan, commit)| {
        let has_related = locked.heads.get(&commit.fence.session.as_uuid()).is_some_and(|it| it.has_related);
        has_related && plan.as_ref().is_ok_and(|plan| plan.ended() > 0)
    });
    let ended: Vec<Uuid> = ended.map(|(_, commit)| commit.run.as_uuid()).collect();
    related_rows::with_live_children(connection, &ended).await
}

/// Whether a commit ends the session's current run for the first time, and needs nothing but the head to be decided.
pub(super) fn is_simple_end(commit: &Commit, locked: &LockedHead) -> bool {
    let head = &locked.head;
    let is_new = head.current == Some(commit.run) && head.last_commit != Some(commit.id);
    let is_small = commit.is_small_end() && commit.successors.iter().all(Commit::is_small_end);
    is_small && is_new && !locked.has_related && head.verify(&commit.fence).is_ok()
}

/// Checks one commit and collects its rows. The outer error is a fault that fails the whole batch.
pub(super) fn plan(
    context: &Context,
    commit: &Commit,
    locked: &mut LockedSessions,
    loaded: &mut CommitContext,
    writes: &mut WriteSet,
) -> Result<Result<PlannedCommit>> {
    let (session, at) = (commit.fence.session.as_uuid(), locked.at);
    if let Err(refusal) = check(commit) {
        return Ok(Err(refusal));
    }
    let mut planned = match accept(commit, locked, loaded) {
        Err(refusal) => return Ok(Err(refusal)),
        Ok(Write::Repeated) => return Ok(Ok(repeated(commit, locked, loaded))),
        Ok(Write::New) => PlannedCommit::new(commit, NextAction::Continue),
    };
    let missing = || Error::internal("accepted commit without its session");
    let head = locked.heads.get_mut(&session).ok_or_else(missing)?;
    commit_rows::messages(commit, head.head.last_cursor, at, writes)?;
    commit_rows::contents(commit, writes)?;
    commit_rows::related(commit, head, at, writes)?;
    let mut events = match &commit.then {
        RunTransition::End(finish) => commit_rows::ending_events(commit, finish, head, at).collect(),
        RunTransition::Continue | RunTransition::HandOver | RunTransition::Park(_) => commit.events.clone(),
    };
    match &commit.then {
        RunTransition::Continue => commit_rows::steps(commit, writes)?,
        RunTransition::End(finish) => {
            let mut related = loaded.related.remove(&commit.run.as_uuid()).unwrap_or_default();
            related.add_pending(&commit.approvals);
            events.extend(related.withdrawal_events(commit.run, at));
            events.push(commit_rows::end(commit, finish, head, at, writes)?);
            let accepted_ends =
                successors::end_successors(commit, head, &loaded.queued, at, &mut events, writes)?;
            let last = accepted_ends.last().unwrap_or(&finish);
            planned.action = if last.release { NextAction::Released } else { NextAction::GrantNext };
            (planned.ended, planned.parent) = (1 + accepted_ends.len(), related.parent);
        }
        RunTransition::HandOver | RunTransition::Park(_) => {
            commit_rows::steps(commit, writes)?;
            let ownership_end = match &commit.then {
                RunTransition::Park(_) if loaded.already_satisfied.contains(&commit.run) => {
                    OwnershipEnd::AlreadySatisfied
                }
                RunTransition::Park(park_request) => OwnershipEnd::Parked(park_request),
                _ => OwnershipEnd::HandedOver,
            };
            planned.events = writes.append(head, std::mem::take(&mut events))?;
            let mut current = loaded.current.remove(&session);
            if let Some(current) = &mut current {
                current.related.add_pending(&commit.approvals);
                current.run.worked = current.run.worked.max(commit.worked);
            }
            let ended_ownership = recover::end_ownership(context, head, current, ownership_end, at, writes)?;
            planned.events.extend(ended_ownership.events);
            planned.action = NextAction::Released;
            (planned.ended, planned.parent) = (usize::from(ended_ownership.ended), ended_ownership.parent);
        }
    }
    planned.events.extend(writes.append(head, events)?);
    planned.children = loaded.new_children.create(context, commit, &mut locked.heads, at, writes)?;
    Ok(Ok(planned))
}

/// Decides whether the commit is new or repeated. A commit that cannot be done completely is refused before anything
/// changes.
fn accept(commit: &Commit, locked: &mut LockedSessions, loaded: &CommitContext) -> Result<Write> {
    let session = commit.fence.session.as_uuid();
    let gone = || Error::new(Code::OwnershipLost, "the session is gone");
    let head = &mut locked.heads.get_mut(&session).ok_or_else(gone)?.head;
    let earlier = head.last_commit;
    let write = head.accept(&commit.fence, commit.id, commit.run)?;
    if write == Write::New
        && let Err(refusal) = loaded.new_children.check(commit, &locked.heads)
    {
        if let Some(locked) = locked.heads.get_mut(&session) {
            locked.head.last_commit = earlier;
        }
        return Err(refusal);
    }
    Ok(write)
}

/// The plan of a commit that was done before.
fn repeated(commit: &Commit, locked: &LockedSessions, loaded: &mut CommitContext) -> PlannedCommit {
    let action = if matches!(commit.then, RunTransition::Continue) {
        NextAction::Continue
    } else {
        NextAction::Replay
    };
    PlannedCommit {
        children: children::wake_again(commit, &locked.heads),
        // The number of accepted successors is no longer known; a retry uses it only for notifications.
        ended: if matches!(commit.then, RunTransition::End(_)) { 1 + commit.successors.len() } else { 0 },
        parent: loaded.related.remove(&commit.run.as_uuid()).and_then(|related| related.parent),
        ..PlannedCommit::new(commit, action)
    }
}

/// Refuses commits that a correct worker never sends.
fn check(commit: &Commit) -> Result<()> {
    if !commit.messages.is_empty()
        && commit.events.is_empty()
        && matches!(commit.then, RunTransition::Continue)
    {
        return Err(Error::internal("a commit with messages needs an event"));
    }
    if commit.events.iter().any(|event| event.body.terminal_state().is_some()) {
        return Err(Error::internal("a commit must not contain a terminal event"));
    }
    match &commit.then {
        RunTransition::End(finish)
            if !finish.end.state.is_terminal() || !RunState::Running.allows(finish.end.state) =>
        {
            Err(Error::internal(format!("a run cannot end as {}", finish.end.state)))
        }
        _ => Ok(()),
    }
}

/// Grants the next run to the owner, or releases the session if there is none.
pub(super) fn conclude(
    plan: PlannedCommit,
    commit: &Commit,
    locked: &mut LockedSessions,
    successor: Option<HeadRunRow>,
) -> Result<Committed> {
    let mut committed = Committed {
        ended: plan.ended,
        events: plan.events,
        next: None,
        released: false,
        children: plan.children,
        parent: plan.parent,
        has_children: false,
        budgeted: None,
    };
    if plan.action == NextAction::Continue {
        return Ok(committed);
    }
    let at = locked.at;
    let head = locked.heads.get_mut(&plan.session);
    let head = head.ok_or_else(|| Error::internal("session of a planned commit is not loaded"))?;
    let still_owned = head.head.verify(&commit.fence).is_ok();
    let successor = match plan.action {
        NextAction::Released => None,
        NextAction::Replay if !still_owned => None,
        _ => successor,
    };
    match successor {
        Some(successor) => committed.next = Some(Box::new(grant(head, commit.fence, successor, at)?)),
        None => {
            if still_owned {
                head.head.release();
            }
            committed.released = true;
        }
    }
    Ok(committed)
}
