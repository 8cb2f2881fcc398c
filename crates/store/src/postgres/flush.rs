//! Small runs without locks.
//!
//! The usual way through a batch is a transaction that locks its sessions, decides and writes: six and more round trips, and each lock is
//! a write of its own. What small runs need is a few rows of one session, so here the sessions are read, the same functions decide, and
//! *one* statement writes it all, each session only if its version is still the one that was read. Who decided on something outdated
//! has written nothing, and goes the usual way; so does everything that is not small.

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
    claim::{Surroundings, by_session, claim_batch, grant, grant_run},
    commit::{Background, commit_batch, conclude, plan},
    dialect::{self, Connection},
    lock::{Locked, found},
    own::Own,
    ownership::{SessionLook, look_at_sessions},
    runs::{RunLook, look_at_runs},
    store::{ClaimRequest, Context, Lanes},
    submit::{self, Answer, Keys, submit_batch},
    swift::{self, ClaimableRow},
    writes::Writes,
};
use crate::{
    Claim, Commit, Committed, Counts, Grant, NewRun, Seat, Seats, Submitted, Then,
    coalesce::{Coalescer, flush_all},
    meters::{Batches, News},
    rows::{HeadRunRow, LockedHead},
    written::RunFinish,
};

/// A task for each kind of calls: what one commits the others need not wait for.
pub(super) fn start(context: &Context, tasks: &TaskTracker) -> Lanes {
    macro_rules! coalesced {
        ($name:literal, $flush:path) => {{
            let (context, own) = (context.clone(), Arc::new(Own::new(&context.writer)));
            Coalescer::start(tasks, dialect::MAX_BATCH, Batches::new($name), move |batch: Arc<Vec<_>>| {
                let (context, own) = (context.clone(), Arc::clone(&own));
                async move {
                    let mut kept = own.take().await?;
                    let answers = $flush(&context, &mut kept.connection, &batch).await?;
                    own.keep(kept);
                    Ok(answers)
                }
            })
        }};
    }
    Lanes {
        submits: coalesced!("submit", submits),
        claims: coalesced!("claim", claims),
        commits: coalesced!("commit", commits),
        run_looks: coalesced!("look_at_run", run_looks),
        session_looks: coalesced!("look_at_session", session_looks),
    }
}

async fn run_looks(_: &Context, connection: &mut Connection, batch: &[RunLook]) -> Result<Vec<Result<Run>>> {
    look_at_runs(connection, batch).await
}

async fn session_looks(
    _: &Context,
    connection: &mut Connection,
    batch: &[SessionLook],
) -> Result<Vec<Result<bool>>> {
    look_at_sessions(connection, batch).await
}

/// Fewer are not worth a statement of their own: the others have to go the usual way anyhow.
const MIN_SHARE: usize = 2;

/// What became of a batch: answers for those who are done, in their places.
struct Answers<T>(Vec<Option<Result<T>>>);

impl<T> Answers<T> {
    fn none(count: usize) -> Self {
        Self((0..count).map(|_| None).collect())
    }

    /// How many are done.
    fn count(&self) -> usize {
        self.0.iter().flatten().count()
    }

    /// Those who have no answer yet.
    fn missing<R: Clone>(&self, batch: &[R]) -> Vec<R> {
        let missing = batch.iter().zip(&self.0).filter(|(_, answer)| answer.is_none());
        missing.map(|(request, _)| request.clone()).collect()
    }

    /// Fills the gaps in their order.
    fn complete(self, rest: Vec<Result<T>>) -> Vec<Result<T>> {
        let mut rest = rest.into_iter();
        self.0.into_iter().filter_map(|answer| answer.or_else(|| rest.next())).collect()
    }
}

/// How often the short way is tried: by requests behind others of the same session, and by those who decided on something outdated.
const ROUNDS: usize = 3;

/// The places of the first requests of their sessions that have no answer yet, as far as they fit for the short way.
fn first_places<T, R>(
    batch: &[T],
    answers: &Answers<R>,
    session: impl Fn(&T) -> SessionId,
    fits: impl Fn(&T) -> bool,
) -> Vec<usize> {
    let mut seen = HashSet::new();
    let unanswered = batch.iter().enumerate().filter(|(place, _)| answers.0[*place].is_none());
    let first = unanswered.filter(|(_, request)| seen.insert(session(request)) && fits(request));
    first.map(|(place, _)| place).collect()
}

/// Goes the short way with some places at a time, for as long as it leads somewhere. A failure is everyone's as long as nothing is
/// committed; after that, those who are left find out for themselves.
macro_rules! in_rounds {
    ($batch:ident, $answers:ident, $session:expr, $fits:expr, |$places:ident| $swiftly:expr) => {
        for round in 0..ROUNDS {
            let before = $answers.count();
            let $places = &first_places($batch, &$answers, $session, $fits);
            if $places.is_empty() || (round == 0 && $places.len() * MIN_SHARE < $batch.len()) {
                break;
            }
            match $swiftly.await {
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
    in_rounds!(batch, answers, |run| run.session, small, |places| submit_swiftly(
        context,
        connection,
        batch,
        places,
        &mut answers
    ));
    let rest = answers.missing(batch);
    if rest.len() == batch.len() {
        return submit_batch(context, batch).await;
    }
    // What is committed must not be tried again because of the others: their failures are theirs alone.
    let flush = |rest: Arc<Vec<_>>| async move { submit_batch(context, &rest).await };
    Ok(answers.complete(flush_all(&flush, Arc::new(rest)).await))
}

/// Runs that were accepted, and what is to be granted with them.
#[derive(Default)]
struct Accepted {
    runs: Vec<(usize, Box<Submitted>)>,
    seated: HashMap<Uuid, (Box<dyn Seat>, Box<Grant>)>,
}

async fn submit_swiftly(
    context: &Context,
    connection: &mut Connection,
    batch: &[NewRun],
    places: &[usize],
    answers: &mut Answers<Submitted>,
) -> Result<()> {
    let sessions: Vec<Uuid> = places.iter().map(|place| batch[*place].session.as_uuid()).collect();
    let (mut locked, around) = accepting(context, connection, &sessions).await?;
    let (mut keys, mut writes) = (Keys::default(), Writes::default());
    let mut accepted = Accepted::default();
    for place in places {
        match submit::accept(context, &batch[*place], &mut locked, &mut keys, &mut writes)? {
            Answer::Accepted(submitted) => accepted.runs.push((*place, submitted)),
            Answer::Refused(refusal) => answers.0[*place] = Some(Err(refusal)),
            Answer::Replay(_) => {}
        }
    }
    if let Some((seats, around)) = around {
        accepted.seat(&mut locked, &*seats, around)?;
    }
    let granted = accepted.seated.iter().map(|(session, (seat, _))| (*session, seat.worker())).collect();
    let won = match accepted.runs.is_empty() {
        true => HashSet::new(),
        false => swift::submit(connection, &locked.heads, &writes.runs, &writes.chunks, &granted).await?,
    };
    let mut news = News::default();
    let mut counts = Counts::default();
    for (place, mut submitted) in accepted.runs {
        let session = submitted.run.session.as_uuid();
        if won.contains(&session) {
            news.submitted(submitted.run.input.kind(), &submitted.pool, submitted.run.tenant);
            counts.submitted += 1;
            if let Some((seat, grant)) = accepted.seated.remove(&session) {
                submitted.wake = false;
                seat.take(grant);
            }
            answers.0[place] = Some(Ok(*submitted));
        }
    }
    context.meters.tell(news);
    context.tally.add(counts);
    Ok(())
}

type Around = HashMap<Uuid, Surroundings>;

/// Sessions as they are now. Where somebody stands by, with what is around runs that could be granted.
async fn accepting(
    context: &Context,
    connection: &mut Connection,
    sessions: &[Uuid],
) -> Result<(Locked, Option<(Arc<dyn Seats>, Around)>)> {
    let Some(seats) = context.post.on_duty() else {
        return Ok((found(dialect::peek_heads(connection, sessions).await?)?, None));
    };
    let rows = swift::accepting(connection, sessions).await?;
    let (heads, around): (Vec<_>, Vec<_>) = rows.into_iter().map(swift::AcceptingRow::split).unzip();
    let around = heads.iter().zip(around).filter_map(|(head, around)| Some((head.id, around?))).collect();
    Ok((found(heads)?, Some((seats, around))))
}

impl Accepted {
    /// Grants runs that are the first of their sessions to workers that have room, if these sessions are nobody's.
    fn seat(&mut self, locked: &mut Locked, seats: &dyn Seats, mut around: Around) -> Result<()> {
        let at = locked.at;
        for (_, submitted) in self.runs.iter().filter(|(_, submitted)| submitted.wake) {
            let session = submitted.run.session.as_uuid();
            let Some(locked) = locked.heads.get_mut(&session) else { continue };
            if !locked.head.is_first(submitted.run.seq) || locked.head.current.is_some() {
                continue;
            }
            let Some(around) = around.remove(&session) else { continue };
            let Some(seat) = seats.seat(&locked.head.pool, submitted.run.session) else { continue };
            if let ClaimDecision::Granted { fence } = locked.head.claim(seat.worker()) {
                let grant = grant_run(locked, fence, submitted.run.clone(), around, at)?;
                self.seated.insert(session, (seat, Box::new(grant)));
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
        let its = |request: &ClaimRequest| request.worker == worker;
        in_rounds!(batch, answers, |request| request.session, its, |places| claim_swiftly(
            connection,
            batch,
            places,
            &mut answers
        ));
    }
    let rest = answers.missing(batch);
    if rest.len() == batch.len() {
        return claim_batch(context, batch).await;
    }
    // What is committed must not be tried again because of the others: their failures are theirs alone.
    let flush = |rest: Arc<Vec<_>>| async move { claim_batch(context, &rest).await };
    Ok(answers.complete(flush_all(&flush, Arc::new(rest)).await))
}

/// Grants sessions that nobody owns, with runs that nobody has tried yet, to a worker that lives.
async fn claim_swiftly(
    connection: &mut Connection,
    batch: &[ClaimRequest],
    places: &[usize],
    answers: &mut Answers<Claim>,
) -> Result<()> {
    let wanted: HashMap<Uuid, usize> =
        places.iter().map(|place| (batch[*place].session.as_uuid(), *place)).collect();
    let worker = batch[places[0]].worker;
    let mut grants = Vec::new();
    let mut heads = Vec::new();
    for row in swift::claimable(connection, wanted.keys().copied(), worker).await? {
        let Some(place) = wanted.get(&row.session()).copied() else { continue };
        if let Some((head, grant)) = granted(row, &batch[place])? {
            heads.push(head);
            grants.push((place, grant));
        }
    }
    if grants.is_empty() {
        return Ok(());
    }
    let won = swift::save(connection, &heads).await?;
    for (place, grant) in grants {
        if won.contains(&grant.fence.session.as_uuid()) {
            answers.0[place] = Some(Ok(Claim::Granted(Box::new(grant))));
        }
    }
    Ok(())
}

/// The session as it will be and what its worker gets, where this is simple.
fn granted(row: ClaimableRow, request: &ClaimRequest) -> Result<Option<(LockedHead, Grant)>> {
    let lives = matches!(row.lease(request.worker).owner(), Owner::Alive { .. });
    let free = !row.is_owned() && row.run.run.current_run.is_none();
    let first = row.run.is_runnable() && row.run.is_untried() && !row.run.is_budgeted();
    if !(lives && free && first && row.run.run.tenant_id == request.tenant.as_uuid()) {
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
    let small = |commit: &Commit| commit.is_small_end() && commit.behind.is_empty() && commit.wanted == 0;
    let mut answers = Answers::none(batch.len());
    in_rounds!(batch, answers, |commit| commit.fence.session, small, |places| commit_swiftly(
        context,
        connection,
        batch,
        places,
        &mut answers
    ));
    let rest = answers.missing(batch);
    if rest.len() == batch.len() {
        return commit_batch(context, batch).await;
    }
    // What is committed must not be tried again because of the others: their failures are theirs alone.
    let flush = |rest: Arc<Vec<_>>| async move { commit_batch(context, &rest).await };
    Ok(answers.complete(flush_all(&flush, Arc::new(rest)).await))
}

async fn commit_swiftly(
    context: &Context,
    connection: &mut Connection,
    batch: &[Commit],
    places: &[usize],
    answers: &mut Answers<Committed>,
) -> Result<()> {
    let sessions = places.iter().map(|place| batch[*place].fence.session.as_uuid());
    let sessions: Vec<Uuid> = sessions.collect();
    let mut locked = found(dialect::peek_heads(connection, &sessions).await?)?;
    let followed = locked.heads.values().filter(|it| it.head.pending > 1).map(|it| it.head.session.as_uuid());
    let followed: Vec<Uuid> = followed.collect();
    let mut successors = match followed.is_empty() {
        true => HashMap::new(),
        false => by_session(dialect::next_runs(connection, &followed).await?),
    };
    let mut writes = Writes::default();
    let mut planned = Vec::new();
    for place in places {
        let commit = &batch[*place];
        let next = successors.get(&commit.fence.session.as_uuid());
        let simple = next.is_none_or(|next| next.is_untried() && !next.is_budgeted());
        if simple && let Some(committed) = end(context, commit, &mut locked, &mut successors, &mut writes)? {
            planned.push((*place, committed));
        }
    }
    if planned.is_empty() {
        return Ok(());
    }
    // In the order in which they were planned, as their ends were noted.
    let sessions = planned.iter().map(|(place, _)| batch[*place].fence.session.as_uuid());
    let ended: Vec<(Uuid, &RunFinish)> = sessions.zip(&writes.finished).collect();
    let won = swift::end(connection, &locked.heads, &ended, &writes.chunks).await?;
    let mut counts = Counts::default();
    for (place, committed) in planned {
        if won.contains(&batch[place].fence.session.as_uuid()) {
            count(&batch[place], &mut counts);
            answers.0[place] = Some(Ok(committed));
        }
    }
    context.tally.add(counts);
    Ok(())
}

/// Notes the end of a run, if it is as simple as it looks. Refusals are left to the usual way.
fn end(
    context: &Context,
    commit: &Commit,
    locked: &mut Locked,
    successors: &mut HashMap<Uuid, HeadRunRow>,
    writes: &mut Writes,
) -> Result<Option<Committed>> {
    let head = locked.heads.get(&commit.fence.session.as_uuid());
    let simple = head.is_some_and(|it| {
        !it.ties && it.head.verify(&commit.fence).is_ok() && it.head.last_commit != Some(commit.id)
    });
    if !simple {
        return Ok(None);
    }
    match plan(context, commit, locked, &mut Background::of_small(HashSet::new()), writes)? {
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
    let Then::End(finish) = &commit.then else { return };
    match finish.end.state {
        RunState::Completed => counts.completed += 1,
        RunState::Failed => counts.failed += 1,
        RunState::Cancelled => counts.cancelled += 1,
        RunState::TimedOut => counts.timed_out += 1,
        RunState::Queued | RunState::Running | RunState::Parked => {}
    }
}
