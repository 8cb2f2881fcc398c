//! What owners write: progress, ends, and partings.

use std::collections::{HashMap, HashSet};

use remuda_domain::{
    Appended, Code, Error, RunId, RunState, SessionId, Timestamp, error::Result, run::ParkReason,
    session::Write,
};
use uuid::Uuid;

use super::{
    children::{self, Nursery},
    claim::{by_session, grant, load_budgets, load_earlier_steps},
    dialect::{self, Connection},
    following,
    lock::{Locked, lock},
    notes, park,
    recover::{self, Attempted, Parting},
    spending,
    store::{Aftermath, Context},
    ties::{self, Ties},
    writes::{self, Writes},
};
use crate::{
    Budgeted, Commit, Committed, Grant, SessionChange, Then,
    error::db,
    rows::{HeadRunRow, LockedHead},
};

/// A commit that passed its checks.
pub(super) struct Planned {
    session: Uuid,
    events: Appended,
    moves: Move,
    children: Vec<SessionChange>,
    /// How many runs are over with it: none, this one, or those behind it as well.
    ended: usize,
    parent: Option<RunId>,
}

impl Planned {
    /// How many runs are over with it.
    pub(super) fn ended(&self) -> usize {
        self.ended
    }

    fn new(commit: &Commit, moves: Move) -> Self {
        let session = commit.fence.session.as_uuid();
        Self { session, events: Appended::default(), moves, children: Vec::new(), ended: 0, parent: None }
    }
}

/// What is left to do once everyone's writes are known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Move {
    /// The run goes on.
    Stay,
    /// On to the next run of the session, if there is one.
    Next,
    /// The session is nobody's now.
    Gone,
    /// This was all done before; the answer is to be found out once more.
    Replay,
}

/// What the commits of a batch have to be told beside the heads of their sessions.
#[derive(Default)]
pub(super) struct Background {
    /// Runs that their owners give back.
    current: HashMap<Uuid, Attempted>,
    /// Of runs that end. Missing for those on which nothing hangs.
    ties: HashMap<Uuid, Ties>,
    nursery: Nursery,
    /// Runs that want to wait for what has come.
    need_not_wait: HashSet<RunId>,
    /// Runs behind others that can still be ended with them.
    queued: HashSet<Uuid>,
    /// Budgets limit some of those that spend.
    limited: bool,
}

impl Background {
    /// Of commits on which nothing else hangs, with the runs behind theirs that are as their owners believe.
    pub(super) fn of_small(queued: HashSet<Uuid>) -> Self {
        Self { queued, ..Self::default() }
    }

    async fn load(connection: &mut Connection, batch: &[Commit], locked: &Locked) -> Result<Self> {
        let parting = batch.iter().filter(|commit| matches!(commit.then, Then::HandOver | Then::Park(_)));
        let parting: Vec<Uuid> = parting.map(|commit| commit.fence.session.as_uuid()).collect();
        let is_tied = |session: SessionId| locked.heads.get(&session.as_uuid()).is_some_and(|it| it.ties);
        let ending = batch.iter().filter(|it| matches!(it.then, Then::End(_)) && is_tied(it.fence.session));
        let ending: Vec<Uuid> = ending.map(|commit| commit.run.as_uuid()).collect();
        let limited = lock_budgets(connection, batch).await?;
        let mut need_not_wait = HashSet::new();
        for commit in batch {
            let Then::Park(parking) = &commit.then else { continue };
            let children = commit.children.iter().map(|child| child.run.as_uuid());
            let made = children.chain(commit.approvals.iter().map(|it| it.id.as_uuid())).collect();
            if park::has_come(connection, commit.run, parking, &made).await? {
                need_not_wait.insert(commit.run);
            }
        }
        Ok(Self {
            current: recover::current_runs(connection, &locked.heads, &parting).await?,
            ties: ties::load(connection, &ending).await?,
            nursery: Nursery::load(connection, batch).await?,
            need_not_wait,
            queued: following::still_queued(connection, batch).await?,
            limited,
        })
    }
}

/// Locks the budgets that the batch looks at or changes, all at once, so that two batches never wait for each other in a circle.
/// Whether there are any.
async fn lock_budgets(connection: &mut Connection, batch: &[Commit]) -> Result<bool> {
    let wants_money =
        |then: &Then| matches!(then, Then::Park(parking) if parking.reason == ParkReason::Budget);
    let spending = batch.iter().filter(|commit| !commit.spent.is_empty() || wants_money(&commit.then));
    let spending: Vec<Uuid> = spending.map(|commit| commit.run.as_uuid()).collect();
    if spending.is_empty() {
        return Ok(false);
    }
    let budgets = spending::covering(connection, &spending).await?;
    if !budgets.is_empty() {
        dialect::lock_budgets(connection, &budgets).await?;
    }
    Ok(!budgets.is_empty())
}

/// What limits a run that goes on and told of costs.
async fn budgeted(connection: &mut Connection, commit: &Commit) -> Result<Option<Budgeted>> {
    if commit.spent.is_empty() || !matches!(commit.then, Then::Continue) {
        return Ok(None);
    }
    let budgets = spending::covering(connection, &[commit.run.as_uuid()]).await?;
    Ok(spending::budgeted(&spending::load(connection, &budgets).await?))
}

/// Writes the progress and the ends of many runs in one transaction, each answered for itself.
pub(crate) async fn commit_batch(context: &Context, batch: &[Commit]) -> Result<Vec<Result<Committed>>> {
    let mut tx = dialect::begin(&context.writer).await?;
    let (results, aftermath) = commit_within(&mut tx, context, batch).await?;
    tx.commit().await.map_err(db)?;
    aftermath.tell(context);
    Ok(results)
}

/// The same within a transaction.
pub(super) async fn commit_within(
    tx: &mut Connection,
    context: &Context,
    batch: &[Commit],
) -> Result<(Vec<Result<Committed>>, Aftermath)> {
    let mut locked = lock(tx, touched(batch).into_iter()).await?;
    let mut background = Background::load(tx, batch, &locked).await?;
    let mut writes = Writes::default();
    let mut planned = Vec::with_capacity(batch.len());
    for commit in batch {
        planned.push(plan(context, commit, &mut locked, &mut background, &mut writes)?);
    }
    let news = std::mem::take(&mut writes.news);
    let counts = writes.write(tx).await?;
    let moving = planned.iter().flatten().filter(|plan| matches!(plan.moves, Move::Next | Move::Replay));
    let waiting: Vec<Uuid> = moving
        .map(|plan| plan.session)
        .filter(|id| locked.heads.get(id).is_some_and(|it| it.head.pending > 0))
        .collect();
    let mut successors = match waiting.is_empty() {
        true => HashMap::new(),
        false => by_session(dialect::head_runs(tx, &waiting).await?),
    };
    let bereaving = bereaving(tx, &planned, batch, &locked).await?;
    let mut results = Vec::with_capacity(batch.len());
    for (plan, commit) in planned.into_iter().zip(batch) {
        results.push(match plan {
            Ok(plan) => {
                let has_children = plan.ended() > 0 && bereaving.contains(&commit.run.as_uuid());
                let successor = successors.remove(&commit.fence.session.as_uuid());
                let successor = successor.filter(HeadRunRow::is_runnable);
                let committed = conclude(plan, commit, &mut locked, successor, |head, row, at| {
                    grant(head, commit.fence, row, at)
                })?;
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
    writes::save(tx, &locked.heads, changed).await?;
    let next = results.iter_mut().flatten().filter_map(|committed| committed.next.as_deref_mut());
    load_earlier_steps(tx, next, &[]).await?;
    for (result, commit) in results.iter_mut().zip(batch) {
        let Ok(committed) = result else { continue };
        if let Some(next) = committed.next.as_deref_mut() {
            load_budgets(tx, next).await?;
            next.following = following::load(tx, next, commit.wanted).await?;
        }
        if background.limited {
            committed.budgeted = budgeted(tx, commit).await?;
        }
    }
    Ok((results, Aftermath { news, counts }))
}

/// The sessions of a batch, those of children included, whether they exist already or not.
fn touched(batch: &[Commit]) -> Vec<Uuid> {
    let sessions = batch.iter().flat_map(|commit| {
        let children = commit.children.iter().map(|child| child.session.as_uuid());
        std::iter::once(commit.fence.session.as_uuid()).chain(children)
    });
    sessions.collect()
}

/// Runs that ended and left unfinished ones below them.
async fn bereaving(
    connection: &mut Connection,
    planned: &[Result<Planned>],
    batch: &[Commit],
    locked: &Locked,
) -> Result<HashSet<Uuid>> {
    let ended = planned.iter().zip(batch).filter(|(plan, commit)| {
        let tied = locked.heads.get(&commit.fence.session.as_uuid()).is_some_and(|it| it.ties);
        tied && plan.as_ref().is_ok_and(|plan| plan.ended() > 0)
    });
    let ended: Vec<Uuid> = ended.map(|(_, commit)| commit.run.as_uuid()).collect();
    ties::with_live_children(connection, &ended).await
}

/// Checks one commit and notes what it writes. The outer error is a fault that fails the whole batch.
pub(super) fn plan(
    context: &Context,
    commit: &Commit,
    locked: &mut Locked,
    background: &mut Background,
    writes: &mut Writes,
) -> Result<Result<Planned>> {
    let (session, at) = (commit.fence.session.as_uuid(), locked.at);
    if let Err(refusal) = check(commit) {
        return Ok(Err(refusal));
    }
    let mut planned = match accept(commit, locked, background) {
        Err(refusal) => return Ok(Err(refusal)),
        Ok(Write::Repeated) => return Ok(Ok(repeated(commit, locked, background))),
        Ok(Write::New) => Planned::new(commit, Move::Stay),
    };
    let fault = || Error::internal("an accepted commit without its session");
    let head = locked.heads.get_mut(&session).ok_or_else(fault)?;
    notes::messages(commit, head.head.last_cursor, at, writes)?;
    notes::contents(commit, writes)?;
    notes::ties(commit, head, at, writes)?;
    let mut events = match &commit.then {
        Then::End(finish) => notes::told(commit, finish, head, at).collect(),
        Then::Continue | Then::HandOver | Then::Park(_) => commit.events.clone(),
    };
    match &commit.then {
        Then::Continue => notes::steps(commit, writes)?,
        Then::End(finish) => {
            let mut ties = background.ties.remove(&commit.run.as_uuid()).unwrap_or_default();
            ties.ask(&commit.approvals);
            events.extend(ties.withdrawn(commit.run, at));
            events.push(notes::end(commit, finish, head, at, writes)?);
            let taken =
                following::end_those_behind(commit, head, &background.queued, at, &mut events, writes)?;
            let last = taken.last().unwrap_or(&finish);
            planned.moves = if last.give_up { Move::Gone } else { Move::Next };
            (planned.ended, planned.parent) = (1 + taken.len(), ties.parent);
        }
        Then::HandOver | Then::Park(_) => {
            notes::steps(commit, writes)?;
            let parting = match &commit.then {
                Then::Park(_) if background.need_not_wait.contains(&commit.run) => Parting::NeedNotWait,
                Then::Park(parking) => Parting::Parked(parking),
                _ => Parting::HandedOver,
            };
            planned.events = writes.append(head, std::mem::take(&mut events))?;
            let mut current = background.current.remove(&session);
            if let Some(current) = &mut current {
                current.ties.ask(&commit.approvals);
            }
            let parted = recover::part(context, head, current, parting, at, writes)?;
            planned.events.extend(parted.events);
            planned.moves = Move::Gone;
            (planned.ended, planned.parent) = (usize::from(parted.ended), parted.parent);
        }
    }
    planned.events.extend(writes.append(head, events)?);
    planned.children = background.nursery.make(context, commit, &mut locked.heads, at, writes)?;
    Ok(Ok(planned))
}

/// Whether the commit is to be done. One that cannot be done whole is not begun.
fn accept(commit: &Commit, locked: &mut Locked, background: &Background) -> Result<Write> {
    let session = commit.fence.session.as_uuid();
    let gone = || Error::new(Code::OwnershipLost, "the session is gone");
    let head = &mut locked.heads.get_mut(&session).ok_or_else(gone)?.head;
    let earlier = head.last_commit;
    let write = head.accept(&commit.fence, commit.id, commit.run)?;
    if write == Write::New
        && let Err(refusal) = background.nursery.check(commit, &locked.heads)
    {
        if let Some(locked) = locked.heads.get_mut(&session) {
            locked.head.last_commit = earlier;
        }
        return Err(refusal);
    }
    Ok(write)
}

/// What is known of a commit that was done before.
fn repeated(commit: &Commit, locked: &Locked, background: &mut Background) -> Planned {
    let moves = if matches!(commit.then, Then::Continue) { Move::Stay } else { Move::Replay };
    Planned {
        children: children::again(commit, &locked.heads),
        // How many were taken is not known any more; whoever asks again only tells others.
        ended: if matches!(commit.then, Then::End(_)) { 1 + commit.behind.len() } else { 0 },
        parent: background.ties.remove(&commit.run.as_uuid()).and_then(|ties| ties.parent),
        ..Planned::new(commit, moves)
    }
}

/// Refuses what no worker should ever write.
fn check(commit: &Commit) -> Result<()> {
    if !commit.messages.is_empty() && commit.events.is_empty() && matches!(commit.then, Then::Continue) {
        return Err(Error::internal("messages without an event have no place"));
    }
    if commit.events.iter().any(|event| event.body.terminal_state().is_some()) {
        return Err(Error::internal("a worker may not report the end of a run by itself"));
    }
    match &commit.then {
        Then::End(finish)
            if !finish.end.state.is_terminal() || !RunState::Running.allows(finish.end.state) =>
        {
            Err(Error::internal(format!("a run cannot end as {}", finish.end.state)))
        }
        _ => Ok(()),
    }
}

/// Moves an owner on to the next run, or takes the session from it when there is none.
pub(super) fn conclude<Successor>(
    plan: Planned,
    commit: &Commit,
    locked: &mut Locked,
    successor: Option<Successor>,
    grant: impl FnOnce(&mut LockedHead, Successor, Timestamp) -> Result<Grant>,
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
    if plan.moves == Move::Stay {
        return Ok(committed);
    }
    let at = locked.at;
    let head = locked.heads.get_mut(&plan.session);
    let head = head.ok_or_else(|| Error::internal("a planned session is missing"))?;
    let still_owned = head.head.verify(&commit.fence).is_ok();
    let successor = match plan.moves {
        Move::Gone => None,
        Move::Replay if !still_owned => None,
        _ => successor,
    };
    match successor {
        Some(successor) => committed.next = Some(Box::new(grant(head, successor, at)?)),
        None => {
            if still_owned {
                head.head.release();
            }
            committed.released = true;
        }
    }
    Ok(committed)
}
