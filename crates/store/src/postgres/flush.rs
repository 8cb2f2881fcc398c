//! Flush tasks for PostgreSQL: one coalescer per kind of call, with an optimistic fast path for small runs.
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
    Run, RunState, SessionId,
    error::Result,
    session::{ClaimDecision, Owner},
};
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::{
    claim::{SessionSettings, by_session, claim_batch, grant, grant_run},
    commit::{CommitContext, commit_batch, conclude, plan},
    dedicated_connection::DedicatedConnection,
    dialect::{self, Connection},
    fast_path::{self, ClaimableRow},
    lock::{LockedSessions, locked_from},
    ownership::{RunnableCheck, check_runnable},
    runs::{RunRead, read_runs},
    store::{ClaimRequest, Coalescers, Context},
    submit::{self, IdempotencyKeys, SubmitOutcome, submit_batch},
    writes::Writes,
};
use crate::{
    Claim, Commit, Committed, Counts, Grant, NewRun, RunTransition, SlotProvider, SlotReservation, Submitted,
    coalesce::{Coalescer, flush_all},
    meters::{FlushMeter, MetricUpdates},
    row_writes::RunFinish,
    rows::{HeadRunRow, LockedHead},
};

/// Starts one flush task per kind of call, so that kinds do not wait for each other's commits.
pub(super) fn start(context: &Context, tasks: &TaskTracker) -> Coalescers {
    macro_rules! coalesced {
        ($name:literal, $flush:path) => {{
            let (context, dedicated) = (context.clone(), Arc::new(DedicatedConnection::new(&context.writer)));
            Coalescer::start(tasks, dialect::MAX_BATCH, FlushMeter::new($name), move |batch: Arc<Vec<_>>| {
                let (context, dedicated) = (context.clone(), Arc::clone(&dedicated));
                async move {
                    let mut checked_out = dedicated.acquire().await?;
                    let answers = $flush(&context, &mut checked_out.connection, &batch).await?;
                    dedicated.release(checked_out);
                    Ok(answers)
                }
            })
        }};
    }
    Coalescers {
        submits: coalesced!("submit", submits),
        claims: coalesced!("claim", claims),
        commits: coalesced!("commit", commits),
        run_reads: coalesced!("look_at_run", run_reads),
        runnable_checks: coalesced!("look_at_session", runnable_checks),
    }
}

async fn run_reads(_: &Context, connection: &mut Connection, batch: &[RunRead]) -> Result<Vec<Result<Run>>> {
    read_runs(connection, batch).await
}

async fn runnable_checks(
    _: &Context,
    connection: &mut Connection,
    batch: &[RunnableCheck],
) -> Result<Vec<Result<bool>>> {
    check_runnable(connection, batch).await
}

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

async fn submits(
    context: &Context,
    connection: &mut Connection,
    batch: &[NewRun],
) -> Result<Vec<Result<Submitted>>> {
    let small = |run: &NewRun| run.idempotency.is_none() && run.budget.is_none();
    let mut answers = Answers::none(batch.len());
    in_rounds!(batch, answers, |run| run.session, small, |indexes| submit_fast_path(
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

/// Accepted runs, and the grants that go with them.
#[derive(Default)]
struct Accepted {
    runs: Vec<(usize, Box<Submitted>)>,
    slot_grants: HashMap<Uuid, (Box<dyn SlotReservation>, Box<Grant>)>,
}

async fn submit_fast_path(
    context: &Context,
    connection: &mut Connection,
    batch: &[NewRun],
    indexes: &[usize],
    answers: &mut Answers<Submitted>,
) -> Result<()> {
    let sessions: Vec<Uuid> = indexes.iter().map(|index| batch[*index].session.as_uuid()).collect();
    let (mut locked, settings) = load_for_submit(context, connection, &sessions).await?;
    let (mut keys, mut writes) = (IdempotencyKeys::default(), Writes::default());
    let mut accepted = Accepted::default();
    for index in indexes {
        match submit::accept(context, &batch[*index], &mut locked, &mut keys, &mut writes)? {
            SubmitOutcome::Accepted(submitted) => accepted.runs.push((*index, submitted)),
            SubmitOutcome::Refused(refusal) => answers.0[*index] = Some(Err(refusal)),
            SubmitOutcome::Replay(_) => {}
        }
    }
    if let Some((provider, settings)) = settings {
        accepted.reserve_slot(&mut locked, &*provider, settings)?;
    }
    let granted = accepted
        .slot_grants
        .iter()
        .map(|(session, (reservation, _))| (*session, reservation.worker()))
        .collect();
    let written = match accepted.runs.is_empty() {
        true => HashSet::new(),
        false => fast_path::submit(connection, &locked.heads, &writes.runs, &writes.chunks, &granted).await?,
    };
    let mut metrics = MetricUpdates::default();
    let mut counts = Counts::default();
    for (index, mut submitted) in accepted.runs {
        let session = submitted.run.session.as_uuid();
        if written.contains(&session) {
            metrics.submitted(submitted.run.input.kind(), &submitted.pool, submitted.run.tenant);
            counts.submitted += 1;
            if let Some((reservation, grant)) = accepted.slot_grants.remove(&session) {
                submitted.wake = false;
                reservation.assign(grant);
            }
            answers.0[index] = Some(Ok(*submitted));
        }
    }
    context.meters.record(metrics);
    context.counters.add(counts);
    Ok(())
}

type SettingsBySession = HashMap<Uuid, SessionSettings>;

/// Loads the sessions without locks. With a registered slot provider, also loads the settings that grants need.
async fn load_for_submit(
    context: &Context,
    connection: &mut Connection,
    sessions: &[Uuid],
) -> Result<(LockedSessions, Option<(Arc<dyn SlotProvider>, SettingsBySession)>)> {
    let Some(provider) = context.slot_provider.get() else {
        return Ok((locked_from(dialect::peek_heads(connection, sessions).await?)?, None));
    };
    let rows = fast_path::load_for_submit(connection, sessions).await?;
    let (heads, settings): (Vec<_>, Vec<_>) = rows.into_iter().map(fast_path::SubmitRow::split).unzip();
    let settings =
        heads.iter().zip(settings).filter_map(|(head, settings)| Some((head.id, settings?))).collect();
    Ok((locked_from(heads)?, Some((provider, settings))))
}

impl Accepted {
    /// Grants each run that is the first of an unowned session to a worker with a free slot.
    fn reserve_slot(
        &mut self,
        locked: &mut LockedSessions,
        provider: &dyn SlotProvider,
        mut settings: SettingsBySession,
    ) -> Result<()> {
        let at = locked.at;
        for (_, submitted) in self.runs.iter().filter(|(_, submitted)| submitted.wake) {
            let session = submitted.run.session.as_uuid();
            let Some(locked) = locked.heads.get_mut(&session) else { continue };
            if !locked.head.is_first(submitted.run.seq) || locked.head.current.is_some() {
                continue;
            }
            let Some(settings) = settings.remove(&session) else { continue };
            let Some(reservation) = provider.reserve_slot(&locked.head.pool, submitted.run.session) else {
                continue;
            };
            if let ClaimDecision::Granted { fence } = locked.head.claim(reservation.worker()) {
                let grant = grant_run(locked, fence, submitted.run.clone(), settings, at)?;
                self.slot_grants.insert(session, (reservation, Box::new(grant)));
            }
        }
        Ok(())
    }
}

async fn claims(
    context: &Context,
    connection: &mut Connection,
    batch: &[ClaimRequest],
) -> Result<Vec<Result<Claim>>> {
    let mut answers = Answers::none(batch.len());
    if let Some(first) = batch.first() {
        let worker = first.worker;
        let same_worker = |request: &ClaimRequest| request.worker == worker;
        in_rounds!(batch, answers, |request| request.session, same_worker, |indexes| claim_fast_path(
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
    connection: &mut Connection,
    batch: &[ClaimRequest],
    indexes: &[usize],
    answers: &mut Answers<Claim>,
) -> Result<()> {
    let requested: HashMap<Uuid, usize> =
        indexes.iter().map(|index| (batch[*index].session.as_uuid(), *index)).collect();
    let worker = batch[indexes[0]].worker;
    let mut grants = Vec::new();
    let mut heads = Vec::new();
    for row in fast_path::claimable(connection, requested.keys().copied(), worker).await? {
        let Some(index) = requested.get(&row.session()).copied() else { continue };
        if let Some((head, grant)) = granted(row, &batch[index])? {
            heads.push(head);
            grants.push((index, grant));
        }
    }
    if grants.is_empty() {
        return Ok(());
    }
    let written = fast_path::save(connection, &heads).await?;
    for (index, grant) in grants {
        if written.contains(&grant.fence.session.as_uuid()) {
            answers.0[index] = Some(Ok(Claim::Granted(Box::new(grant))));
        }
    }
    Ok(())
}

/// The updated session head and the grant, if the claim is simple enough for the fast path.
fn granted(row: ClaimableRow, request: &ClaimRequest) -> Result<Option<(LockedHead, Grant)>> {
    let is_alive = matches!(row.lease(request.worker).owner(), Owner::Alive { .. });
    let is_free = !row.is_owned() && row.run.run.current_run.is_none();
    let first = row.run.is_runnable() && row.run.is_untried() && !row.run.is_budgeted();
    if !(is_alive && is_free && first && row.run.run.tenant_id == request.tenant.as_uuid()) {
        return Ok(None);
    }
    let (at, (head, run)) = (row.now(), row.split());
    let mut head = head.into_head(Owner::Nobody)?;
    match head.head.claim(request.worker) {
        ClaimDecision::Granted { fence } => {
            let grant = grant(&mut head, fence, run, at)?;
            Ok(Some((head, grant)))
        }
        ClaimDecision::Refused { .. } | ClaimDecision::NothingToDo => Ok(None),
    }
}

async fn commits(
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
    let sessions = indexes.iter().map(|index| batch[*index].fence.session.as_uuid());
    let sessions: Vec<Uuid> = sessions.collect();
    let mut locked = locked_from(dialect::peek_heads(connection, &sessions).await?)?;
    let followed = locked.heads.values().filter(|it| it.head.pending > 1).map(|it| it.head.session.as_uuid());
    let followed: Vec<Uuid> = followed.collect();
    let mut successors = match followed.is_empty() {
        true => HashMap::new(),
        false => by_session(dialect::next_runs(connection, &followed).await?),
    };
    let mut writes = Writes::default();
    let mut planned = Vec::new();
    for index in indexes {
        let commit = &batch[*index];
        let next = successors.get(&commit.fence.session.as_uuid());
        let simple = next.is_none_or(|next| next.is_untried() && !next.is_budgeted());
        if simple && let Some(committed) = end(context, commit, &mut locked, &mut successors, &mut writes)? {
            planned.push((*index, committed));
        }
    }
    if planned.is_empty() {
        return Ok(());
    }
    // `writes.finished` has the same order as `planned`.
    let sessions = planned.iter().map(|(index, _)| batch[*index].fence.session.as_uuid());
    let ended: Vec<(Uuid, &RunFinish)> = sessions.zip(&writes.finished).collect();
    let written = fast_path::end(connection, &locked.heads, &ended, &writes.chunks).await?;
    let mut counts = Counts::default();
    for (index, committed) in planned {
        if written.contains(&batch[index].fence.session.as_uuid()) {
            count(&batch[index], &mut counts);
            answers.0[index] = Some(Ok(committed));
        }
    }
    context.counters.add(counts);
    Ok(())
}

/// Plans the end of a run if it is simple enough for the fast path. Refusals are left to the regular path.
fn end(
    context: &Context,
    commit: &Commit,
    locked: &mut LockedSessions,
    successors: &mut HashMap<Uuid, HeadRunRow>,
    writes: &mut Writes,
) -> Result<Option<Committed>> {
    let head = locked.heads.get(&commit.fence.session.as_uuid());
    let simple = head.is_some_and(|it| {
        !it.has_related && it.head.verify(&commit.fence).is_ok() && it.head.last_commit != Some(commit.id)
    });
    if !simple {
        return Ok(None);
    }
    match plan(context, commit, locked, &mut CommitContext::for_small_ends(HashSet::new()), writes)? {
        Ok(planned) => {
            let successor = successors.remove(&commit.fence.session.as_uuid());
            let successor = successor.filter(HeadRunRow::is_runnable);
            let next = |head: &mut LockedHead, row, at| grant(head, commit.fence, row, at);
            conclude(planned, commit, locked, successor, next).map(Some)
        }
        Err(_) => Ok(None),
    }
}

fn count(commit: &Commit, counts: &mut Counts) {
    let RunTransition::End(finish) = &commit.then else { return };
    match finish.end.state {
        RunState::Completed => counts.completed += 1,
        RunState::Failed => counts.failed += 1,
        RunState::Cancelled => counts.cancelled += 1,
        RunState::TimedOut => counts.timed_out += 1,
        RunState::Queued | RunState::Running | RunState::Parked => {}
    }
}
