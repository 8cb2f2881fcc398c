//! The fast path for small runs on PostgreSQL: optimistic, without locks.
//!
//! The regular path is a transaction that locks its sessions, decides and writes: at least six round trips, and each
//! row lock is a write of its own. A small run needs a few rows of one session. The fast path therefore reads the
//! sessions without locks, lets the same functions decide, and writes everything in *one* statement that updates a
//! session only if its version is unchanged. A request whose session has changed writes nothing and takes the regular
//! path, as does everything that is not small.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use remuda_domain::{
    SessionId,
    error::Result,
    session::{ClaimDecision, Owner},
};
use uuid::Uuid;

use super::{
    apply,
    claim::{by_session, claim_batch, grant},
    commit::{CommitContext, commit_batch, conclude, is_simple_end, plan},
    dialect::{self, Connection},
    lock::LockedSessions,
    peek::{self, ClaimableRow},
    placement,
    store::{ClaimRequest, Context},
    submit::{self, IdempotencyKeys, SubmitOutcome, submit_batch},
    write_set::WriteSet,
};
use crate::{
    Claim, Commit, Committed, Grant, NewRun, Submitted,
    coalesce::flush_all,
    rows::{HeadRunRow, HeadWrite, LockedHead},
    time::now,
};

/// The fast path is used if at least one in this many requests is eligible. With fewer, the extra statement does not
/// pay off: the other requests take the regular path anyway.
const MIN_FAST_SHARE: usize = 2;

/// The answers to a batch so far, by index; `None` for requests that are not done.
struct Answers<T>(Vec<Option<Result<T>>>);

impl<T> Answers<T> {
    fn none(count: usize) -> Self {
        Self((0..count).map(|_| None).collect())
    }

    /// Number of requests that are done.
    fn count(&self) -> usize {
        self.0.iter().flatten().count()
    }

    /// The requests without an answer.
    fn unanswered<R: Clone>(&self, batch: &[R]) -> Vec<R> {
        let unanswered = batch.iter().zip(&self.0).filter(|(_, answer)| answer.is_none());
        unanswered.map(|(request, _)| request.clone()).collect()
    }

    /// Fills the gaps, in order.
    fn complete(self, rest: Vec<Result<T>>) -> Vec<Result<T>> {
        let mut rest = rest.into_iter();
        self.0.into_iter().filter_map(|answer| answer.or_else(|| rest.next())).collect()
    }
}

/// How often the fast path is tried. Later rounds serve further requests of the same session, and retries after a
/// version conflict.
const MAX_ROUNDS: usize = 3;

/// The indexes of the first unanswered request of each session, if it is eligible for the fast path.
fn first_indexes<T, R>(
    batch: &[T],
    answers: &Answers<R>,
    session: impl Fn(&T) -> SessionId,
    fits: impl Fn(&T) -> bool,
) -> Vec<usize> {
    let mut seen = HashSet::new();
    let unanswered = batch.iter().enumerate().filter(|(index, _)| answers.0[*index].is_none());
    let first = unanswered.filter(|(_, request)| seen.insert(session(request)) && fits(request));
    first.map(|(index, _)| index).collect()
}

/// Runs the fast path in rounds while it makes progress. An error fails the whole batch as long as nothing is
/// committed; after that, the remaining requests take the regular path.
macro_rules! in_rounds {
    ($batch:ident, $answers:ident, $session:expr, $fits:expr, |$indexes:ident| $fast_path:expr) => {
        for round in 0..MAX_ROUNDS {
            let before = $answers.count();
            let $indexes = &first_indexes($batch, &$answers, $session, $fits);
            if $indexes.is_empty() || (round == 0 && $indexes.len() * MIN_FAST_SHARE < $batch.len()) {
                break;
            }
            match $fast_path.await {
                Err(error) if before == 0 => return Err(error),
                Ok(()) if $answers.count() > before => {}
                _ => break,
            }
        }
    };
}

/// What was decided for one request.
struct Decided<T> {
    index: usize,
    writes: WriteSet,
    answer: T,
}

/// Writes what was decided, as far as its sessions are unchanged since they were read, and returns those answers.
async fn write_decided<T>(
    context: &Context,
    connection: &mut Connection,
    mut decided: Vec<Decided<T>>,
) -> Result<Vec<(usize, T)>> {
    decided.retain(|it| it.writes.is_small());
    if decided.is_empty() {
        return Ok(Vec::new());
    }
    let sets: Vec<&WriteSet> = decided.iter().map(|it| &it.writes).collect();
    let written = apply::write_unchanged(connection, &sets).await?;
    decided.retain(|it| it.writes.heads.iter().all(|head| written.contains(&head.id)));
    Ok(decided
        .into_iter()
        .map(|mut it| {
            it.writes.post_commit().apply(context);
            (it.index, it.answer)
        })
        .collect())
}

pub(super) async fn submits(
    context: &Context,
    connection: &mut Connection,
    batch: &[NewRun],
) -> Result<Vec<Result<Submitted>>> {
    let mut answers = Answers::none(batch.len());
    in_rounds!(batch, answers, |new| new.run.session, submit::is_simple, |indexes| submit_fast_path(
        context,
        connection,
        batch,
        indexes,
        &mut answers
    ));
    let rest = answers.unanswered(batch);
    if rest.len() == batch.len() {
        return submit_batch(context, batch).await;
    }
    // Committed requests must not be retried because others fail: the rest is flushed separately.
    let flush = |rest: Arc<Vec<_>>| async move { submit_batch(context, &rest).await };
    Ok(answers.complete(flush_all(&flush, Arc::new(rest)).await))
}

async fn submit_fast_path(
    context: &Context,
    connection: &mut Connection,
    batch: &[NewRun],
    indexes: &[usize],
    answers: &mut Answers<Submitted>,
) -> Result<()> {
    let sessions: Vec<Uuid> = indexes.iter().map(|index| batch[*index].run.session.as_uuid()).collect();
    let (mut locked, settings) = peek::sessions(connection, &sessions).await?;
    let mut decided = Vec::new();
    for &index in indexes {
        let (mut keys, mut writes) = (IdempotencyKeys::default(), WriteSet::default());
        let accepted = match submit::accept(context, &batch[index], &mut locked, &mut keys, &mut writes)? {
            SubmitOutcome::Accepted(accepted) => accepted,
            SubmitOutcome::Refused(refusal) => {
                answers.0[index] = Some(Err(refusal));
                continue;
            }
            SubmitOutcome::Replay(_) => continue,
        };
        let (session, at) = (accepted.run.session.as_uuid(), locked.at);
        let (Some(head), Some(settings)) = (locked.heads.get_mut(&session), settings.get(&session)) else {
            continue;
        };
        // The write checks the lease.
        let is_alive = |_| Ok(true);
        let grant = placement::place(&*context.slots, &accepted.run, head, settings, at, is_alive)?;
        let submitted = accepted.submitted(head);
        writes.heads.push(HeadWrite::new(head));
        decided.push(Decided { index, writes, answer: (submitted, grant) });
    }
    for (index, (submitted, grant)) in write_decided(context, connection, decided).await? {
        if let Some(grant) = grant {
            grant.deliver();
        }
        answers.0[index] = Some(Ok(submitted));
    }
    Ok(())
}

pub(super) async fn claims(
    context: &Context,
    connection: &mut Connection,
    batch: &[ClaimRequest],
) -> Result<Vec<Result<Claim>>> {
    let mut answers = Answers::none(batch.len());
    if let Some(first) = batch.first() {
        let worker = first.worker;
        let same_worker = |request: &ClaimRequest| request.worker == worker;
        in_rounds!(batch, answers, |request| request.session, same_worker, |indexes| claim_fast_path(
            context,
            connection,
            batch,
            indexes,
            &mut answers
        ));
    }
    let rest = answers.unanswered(batch);
    if rest.len() == batch.len() {
        return claim_batch(context, batch).await;
    }
    // Committed requests must not be retried because others fail: the rest is flushed separately.
    let flush = |rest: Arc<Vec<_>>| async move { claim_batch(context, &rest).await };
    Ok(answers.complete(flush_all(&flush, Arc::new(rest)).await))
}

/// Grants unowned sessions with never-attempted runs to a live worker.
async fn claim_fast_path(
    context: &Context,
    connection: &mut Connection,
    batch: &[ClaimRequest],
    indexes: &[usize],
    answers: &mut Answers<Claim>,
) -> Result<()> {
    let requested: HashMap<Uuid, usize> =
        indexes.iter().map(|index| (batch[*index].session.as_uuid(), *index)).collect();
    let worker = batch[indexes[0]].worker;
    let mut decided = Vec::new();
    for row in peek::claimable(connection, requested.keys().copied(), worker).await? {
        let Some(index) = requested.get(&row.head.session_id).copied() else { continue };
        if let Some((head, grant)) = granted(row, &batch[index])? {
            let writes = WriteSet { heads: vec![HeadWrite::new(&head)], ..WriteSet::default() };
            decided.push(Decided { index, writes, answer: Claim::Granted(Box::new(grant)) });
        }
    }
    for (index, claim) in write_decided(context, connection, decided).await? {
        answers.0[index] = Some(Ok(claim));
    }
    Ok(())
}

/// The updated session head and the grant, if the claim is simple enough for the fast path.
fn granted(row: ClaimableRow, request: &ClaimRequest) -> Result<Option<(LockedHead, Grant)>> {
    let ClaimableRow { head, run, .. } = &row;
    let is_alive = matches!(row.lease(request.worker).owner(), Owner::Alive { .. });
    let is_free = head.owner.is_none() && head.current_run.is_none();
    let is_first = run.is_runnable() && run.is_untried() && !run.is_budgeted();
    if !(is_alive && is_free && is_first && head.tenant_id == request.tenant.as_uuid()) {
        return Ok(None);
    }
    let at = head.now.map_or_else(now, |now| now.0);
    let mut head = row.head.into_head(Owner::Nobody)?;
    match head.head.claim(request.worker) {
        ClaimDecision::Granted { fence } => {
            head.granted_to = Some(request.worker);
            let grant = grant(&mut head, fence, row.run, at)?;
            Ok(Some((head, grant)))
        }
        ClaimDecision::Refused { .. } | ClaimDecision::NothingToDo => Ok(None),
    }
}

pub(super) async fn commits(
    context: &Context,
    connection: &mut Connection,
    batch: &[Commit],
) -> Result<Vec<Result<Committed>>> {
    let small =
        |commit: &Commit| commit.is_small_end() && commit.successors.is_empty() && commit.prefetch == 0;
    let mut answers = Answers::none(batch.len());
    in_rounds!(batch, answers, |commit| commit.fence.session, small, |indexes| commit_fast_path(
        context,
        connection,
        batch,
        indexes,
        &mut answers
    ));
    let rest = answers.unanswered(batch);
    if rest.len() == batch.len() {
        return commit_batch(context, batch).await;
    }
    // Committed requests must not be retried because others fail: the rest is flushed separately.
    let flush = |rest: Arc<Vec<_>>| async move { commit_batch(context, &rest).await };
    Ok(answers.complete(flush_all(&flush, Arc::new(rest)).await))
}

async fn commit_fast_path(
    context: &Context,
    connection: &mut Connection,
    batch: &[Commit],
    indexes: &[usize],
    answers: &mut Answers<Committed>,
) -> Result<()> {
    let sessions: Vec<Uuid> = indexes.iter().map(|index| batch[*index].fence.session.as_uuid()).collect();
    let (mut locked, _) = peek::sessions(connection, &sessions).await?;
    let followed = locked.heads.values().filter(|it| it.head.pending > 1).map(|it| it.head.session.as_uuid());
    let followed: Vec<Uuid> = followed.collect();
    let mut successors = match followed.is_empty() {
        true => HashMap::new(),
        false => by_session(dialect::next_runs(connection, &followed).await?),
    };
    let mut decided = Vec::new();
    for &index in indexes {
        let (commit, mut writes) = (&batch[index], WriteSet::default());
        let successor = successors.remove(&commit.fence.session.as_uuid());
        if let Some(answer) = end(context, commit, &mut locked, successor, &mut writes)? {
            writes.save_heads(&locked, [commit.fence.session.as_uuid()]);
            decided.push(Decided { index, writes, answer });
        }
    }
    for (index, committed) in write_decided(context, connection, decided).await? {
        answers.0[index] = Some(Ok(committed));
    }
    Ok(())
}

/// Decides the end of a run if it is simple enough for the fast path. Refusals are left to the regular path.
fn end(
    context: &Context,
    commit: &Commit,
    locked: &mut LockedSessions,
    successor: Option<HeadRunRow>,
    writes: &mut WriteSet,
) -> Result<Option<Committed>> {
    let is_simple = successor.as_ref().is_none_or(|next| next.is_untried() && !next.is_budgeted());
    let head = locked.heads.get(&commit.fence.session.as_uuid());
    if !is_simple || !head.is_some_and(|head| is_simple_end(commit, head)) {
        return Ok(None);
    }
    let mut loaded = CommitContext::for_small_ends(HashSet::new());
    let Ok(planned) = plan(context, commit, locked, &mut loaded, writes)? else { return Ok(None) };
    let successor = successor.filter(HeadRunRow::is_runnable);
    conclude(planned, commit, locked, successor).map(Some)
}
