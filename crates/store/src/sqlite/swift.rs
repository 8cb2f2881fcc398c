//! Small runs without detours.
//!
//! A statement through the driver is a message to a thread and back, and its rows are copied value by value. What small runs need is a few
//! rows of one session each, so here the lane's own thread reads, lets the same functions decide as everywhere, and writes, on a
//! connection of its own. Each session is read once and written once per flush, whatever happens to it in between. What is not small, and
//! whoever is to be refused, goes the usual way.

mod statements;

use std::collections::{HashMap, HashSet, hash_map::Entry};

use remuda_domain::{
    Error, Run, WorkerId,
    error::Result,
    session::{ClaimDecision, Owner},
};
use uuid::Uuid;

use self::statements::{SessionRow, Statements};
use super::{
    claim::grant_run,
    commit::{Background, conclude, plan},
    flush::Load,
    following,
    lock::Locked,
    store::{Aftermath, ClaimRequest, Context},
    submit::{self, Answer, Keys},
    writes::Writes,
};
use crate::{Claim, Commit, Committed, Grant, NewRun, Seat, Seats, Submitted, time::now};

/// The lane's own connection.
#[derive(Debug)]
pub(super) struct Swift {
    connection: rusqlite::Connection,
}

/// A session that is granted to a worker that stands by, once that is committed.
type Seated = (Box<dyn Seat>, Box<Grant>);

/// A statement that failed ends the flush, and everything goes the usual way.
fn refused(error: rusqlite::Error) -> Error {
    Error::internal("the database refused a statement").with_source(error)
}

impl Swift {
    pub(super) fn open(context: &Context) -> Result<Self> {
        let connection = statements::open(context).map_err(refused)?;
        Ok(Self { connection })
    }

    /// Writes the log back into the database, as far as nobody reads what it replaces.
    pub(super) fn write_back(&self) -> Result<()> {
        self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).map_err(refused)
    }

    /// Does what is small of a load in one transaction. Fails if nothing was written.
    pub(super) fn flush(&mut self, context: &Context, load: &Load) -> Result<Answers> {
        let immediate = rusqlite::TransactionBehavior::Immediate;
        let transaction = self.connection.transaction_with_behavior(immediate).map_err(refused)?;
        let mut flush = Flush::new(context, Statements(&transaction));
        let mut submits = Vec::with_capacity(load.submits.requests.len());
        for request in load.submits.requests.iter() {
            submits.push(flush.submit(request)?);
        }
        // The next runs of owners are read from the table.
        flush.insert_runs()?;
        let mut commits = Vec::with_capacity(load.commits.requests.len());
        for request in load.commits.requests.iter() {
            commits.push(flush.commit(request)?);
        }
        let mut claims = Vec::with_capacity(load.claims.requests.len());
        for request in load.claims.requests.iter() {
            claims.push(flush.claim(request)?);
        }
        let mut taken = Vec::new();
        if let Some(seats) = context.post.on_duty() {
            for submitted in submits.iter_mut().flatten().flatten().filter(|submitted| submitted.wake) {
                taken.extend(flush.hand_over(submitted, &*seats)?);
            }
        }
        let aftermath = flush.write()?;
        transaction.commit().map_err(refused)?;
        // Only now: what is handed over is executed.
        for (seat, grant) in taken {
            seat.take(grant);
        }
        Ok(Answers { submits, commits, claims, aftermath })
    }
}

/// What became of a load: answers for those who are done, in their places.
pub(super) struct Answers {
    submits: Vec<Option<Result<Submitted>>>,
    commits: Vec<Option<Result<Committed>>>,
    claims: Vec<Option<Result<Claim>>>,
    aftermath: Aftermath,
}

impl Answers {
    /// Returns what is left. Whoever has its answer is counted already.
    pub(super) fn give(self, load: Load, context: &Context) -> Load {
        self.aftermath.tell(context);
        Load {
            submits: load.submits.answer_some(self.submits),
            claims: load.claims.answer_some(self.claims),
            commits: load.commits.answer_some(self.commits),
        }
    }
}

/// One transaction.
struct Flush<'a> {
    context: &'a Context,
    statements: Statements<'a>,
    locked: Locked,
    /// What was read of sessions beside their heads.
    rows: HashMap<Uuid, SessionRow>,
    changed: HashSet<Uuid>,
    leases: HashMap<WorkerId, bool>,
    writes: Writes,
    inserted: usize,
}

impl<'a> Flush<'a> {
    fn new(context: &'a Context, statements: Statements<'a>) -> Self {
        Self {
            context,
            statements,
            locked: Locked { heads: HashMap::new(), at: now() },
            rows: HashMap::new(),
            changed: HashSet::new(),
            leases: HashMap::new(),
            writes: Writes::default(),
            inserted: 0,
        }
    }

    /// Reads a session, unless that was done already. Whether it exists.
    fn read(&mut self, session: Uuid) -> Result<bool> {
        let Entry::Vacant(vacant) = self.rows.entry(session) else { return Ok(true) };
        let Some((head, row)) = self.statements.session(session).map_err(refused)? else { return Ok(false) };
        self.locked.heads.insert(session, head.into_head_with_owner()?);
        vacant.insert(row);
        Ok(true)
    }

    fn submit(&mut self, request: &NewRun) -> Result<Option<Result<Submitted>>> {
        let small = request.idempotency.is_none() && request.budget.is_none();
        let session = request.session.as_uuid();
        if !small || !self.read(session)? {
            return Ok(None);
        }
        let mut keys = Keys::default();
        let answer = submit::accept(self.context, request, &mut self.locked, &mut keys, &mut self.writes)?;
        Ok(match answer {
            Answer::Accepted(submitted) => {
                self.changed.insert(session);
                Some(Ok(*submitted))
            }
            Answer::Refused(refusal) => Some(Err(refusal)),
            Answer::Replay(_) => None,
        })
    }

    fn insert_runs(&mut self) -> Result<()> {
        for run in &self.writes.runs[self.inserted..] {
            self.statements.insert_run(run).map_err(refused)?;
        }
        self.inserted = self.writes.runs.len();
        Ok(())
    }

    /// The end of a run, with those that its owner executed behind it, on which nothing else hangs.
    fn commit(&mut self, commit: &Commit) -> Result<Option<Result<Committed>>> {
        let session = commit.fence.session.as_uuid();
        let small = commit.is_small_end() && commit.behind.iter().all(Commit::is_small_end);
        if !small || !self.read(session)? {
            return Ok(None);
        }
        let (Some(locked), Some(row)) = (self.locked.heads.get(&session), self.rows.get(&session)) else {
            return Ok(None);
        };
        let head = &locked.head;
        let is_current = head.current == Some(commit.run) && head.last_commit != Some(commit.id);
        if !is_current || head.verify(&commit.fence).is_err() || locked.ties || row.budgeted {
            return Ok(None);
        }
        let behind = commit.behind.len();
        let line = match head.pending {
            ..=1 => Vec::new(),
            _ => {
                let wanted = usize::try_from(commit.wanted.min(following::MOST)).unwrap_or(0);
                let count = behind + 1 + wanted;
                self.statements.line(session, commit.run.as_uuid(), count).map_err(refused)?
            }
        };
        if line.iter().take(behind + 1).any(|queued| !queued.untouched) {
            return Ok(None);
        }
        let next = line.iter().take(behind).map(|queued| queued.id).collect();
        let mut background = Background::of_small(next);
        let planned = plan(self.context, commit, &mut self.locked, &mut background, &mut self.writes)?;
        let Ok(planned) = planned else { return Ok(None) };
        self.changed.insert(session);
        let mut line = line.into_iter().skip(planned.ended() - 1).take_while(|queued| queued.untouched);
        let (successor, around) = (line.next(), row.around.clone());
        let committed = conclude(planned, commit, &mut self.locked, successor, |head, queued, at| {
            let run = queued.into_run(commit.fence.tenant, commit.fence.session)?;
            let grant = grant_run(head, commit.fence, run, around, at)?;
            let following = line.map(|queued| queued.into_run(commit.fence.tenant, commit.fence.session));
            Ok(Grant { following: following.collect::<Result<_>>()?, ..grant })
        })?;
        Ok(Some(Ok(committed)))
    }

    /// A session that nobody owns, with a run that nobody has tried yet, for a worker that lives.
    fn claim(&mut self, request: &ClaimRequest) -> Result<Option<Result<Claim>>> {
        let session = request.session.as_uuid();
        if !self.read(session)? || !self.is_alive(request.worker)? {
            return Ok(None);
        }
        if self.locked.heads.get(&session).is_none_or(|it| it.head.tenant != request.tenant) {
            return Ok(None);
        }
        let first = self.statements.line(session, Uuid::nil(), 1).map_err(refused)?.pop();
        let Some(first) = first.filter(|queued| queued.untouched) else { return Ok(None) };
        let run = first.into_run(request.tenant, request.session)?;
        Ok(self.grant(session, request.worker, run)?.map(|grant| Ok(Claim::Granted(grant))))
    }

    /// Gives a run that was just accepted to a worker that stands by, if it is the first of its session and that is nobody's. Whoever was
    /// accepted behind it need not wake anybody, either.
    fn hand_over(&mut self, submitted: &mut Submitted, seats: &dyn Seats) -> Result<Option<Seated>> {
        let session = submitted.run.session.as_uuid();
        let Some(head) = self.locked.heads.get(&session).map(|it| &it.head) else { return Ok(None) };
        if head.owner != Owner::Nobody {
            submitted.wake = false;
            return Ok(None);
        }
        if !head.is_first(submitted.run.seq) {
            return Ok(None);
        }
        let Some(seat) = seats.seat(&head.pool, submitted.run.session) else { return Ok(None) };
        if !self.is_alive(seat.worker())? {
            return Ok(None);
        }
        let Some(grant) = self.grant(session, seat.worker(), submitted.run.clone())? else {
            return Ok(None);
        };
        submitted.wake = false;
        Ok(Some((seat, grant)))
    }

    fn grant(&mut self, session: Uuid, worker: WorkerId, run: Run) -> Result<Option<Box<Grant>>> {
        let (Some(locked), Some(row)) = (self.locked.heads.get_mut(&session), self.rows.get(&session)) else {
            return Ok(None);
        };
        if locked.head.owner != Owner::Nobody || locked.head.current.is_some() || row.budgeted {
            return Ok(None);
        }
        let ClaimDecision::Granted { fence } = locked.head.claim(worker) else { return Ok(None) };
        self.changed.insert(session);
        Ok(Some(Box::new(grant_run(locked, fence, run, row.around.clone(), self.locked.at)?)))
    }

    /// Whether a worker has a lease.
    fn is_alive(&mut self, worker: WorkerId) -> Result<bool> {
        if let Some(alive) = self.leases.get(&worker) {
            return Ok(*alive);
        }
        let lease = self.statements.lease(worker.as_uuid()).map_err(refused)?;
        let alive = lease.is_some_and(|lease| matches!(lease.owner(), Owner::Alive { .. }));
        self.leases.insert(worker, alive);
        Ok(alive)
    }

    /// Writes what was decided.
    fn write(mut self) -> Result<Aftermath> {
        for run in &self.writes.finished {
            self.statements.finish_run(run).map_err(refused)?;
        }
        for chunk in &self.writes.chunks {
            let row = self.rows.get_mut(&chunk.session);
            let row = row.ok_or_else(|| Error::internal("events of a session that was not read"))?;
            self.statements.append_chunk(chunk, &mut row.stream).map_err(refused)?;
        }
        for session in &self.changed {
            if let (Some(head), Some(row)) = (self.locked.heads.get(session), self.rows.get(session)) {
                self.statements.save_head(row, head).map_err(refused)?;
            }
        }
        let news = std::mem::take(&mut self.writes.news);
        Ok(Aftermath { news, counts: self.writes.counts() })
    }
}
