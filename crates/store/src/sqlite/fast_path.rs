//! The fast path for small runs on SQLite.
//!
//! A statement through the driver is a message to another thread and back, and its rows are copied value by value. A
//! small run needs a few rows of one session. The flush thread therefore reads, lets the shared functions decide, and
//! writes on its own connection. Each session is read once and written once per flush, however many requests change it.
//! Requests that are not small, and requests to be refused, take the regular path.

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
    commit::{CommitContext, conclude, plan},
    flush::FlushBatch,
    lock::LockedSessions,
    store::{ClaimRequest, Context, PostCommit},
    submit::{self, IdempotencyKeys, SubmitOutcome},
    successors,
    writes::Writes,
};
use crate::{Claim, Commit, Committed, Grant, NewRun, SlotProvider, SlotReservation, Submitted, time::now};

/// The flush thread's own connection.
#[derive(Debug)]
pub(super) struct FastPath {
    connection: rusqlite::Connection,
}

/// A reserved slot and its grant, to be assigned after the commit.
type SlotGrant = (Box<dyn SlotReservation>, Box<Grant>);

/// A failed statement ends the flush, and all requests take the regular path.
fn statement_failed(error: rusqlite::Error) -> Error {
    Error::internal("the database rejected a statement").with_source(error)
}

impl FastPath {
    pub(super) fn open(context: &Context) -> Result<Self> {
        let connection = statements::open(context).map_err(statement_failed)?;
        Ok(Self { connection })
    }

    /// Runs a WAL checkpoint that does not wait for readers.
    pub(super) fn checkpoint(&self) -> Result<()> {
        self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).map_err(statement_failed)
    }

    /// Handles the small requests of a batch in one transaction. On failure, nothing was written.
    pub(super) fn flush(&mut self, context: &Context, batch: &FlushBatch) -> Result<Answers> {
        let immediate = rusqlite::TransactionBehavior::Immediate;
        let transaction = self.connection.transaction_with_behavior(immediate).map_err(statement_failed)?;
        let mut flush = Flush::new(context, Statements(&transaction));
        let mut submits = Vec::with_capacity(batch.submits.requests.len());
        for request in batch.submits.requests.iter() {
            submits.push(flush.submit(request)?);
        }
        // Commits read the next runs from the table.
        flush.insert_runs()?;
        let mut commits = Vec::with_capacity(batch.commits.requests.len());
        for request in batch.commits.requests.iter() {
            commits.push(flush.commit(request)?);
        }
        let mut claims = Vec::with_capacity(batch.claims.requests.len());
        for request in batch.claims.requests.iter() {
            claims.push(flush.claim(request)?);
        }
        let mut slot_grants = Vec::new();
        if let Some(provider) = context.slot_provider.get() {
            for submitted in submits.iter_mut().flatten().flatten().filter(|submitted| submitted.wake) {
                slot_grants.extend(flush.grant_reserved_slot(submitted, &*provider)?);
            }
        }
        let post_commit = flush.write()?;
        transaction.commit().map_err(statement_failed)?;
        // Only after the commit: workers start executing assigned grants.
        for (reservation, grant) in slot_grants {
            reservation.assign(grant);
        }
        Ok(Answers { submits, commits, claims, post_commit })
    }
}

/// The answers to a batch, by index; `None` for requests that take the regular path.
pub(super) struct Answers {
    submits: Vec<Option<Result<Submitted>>>,
    commits: Vec<Option<Result<Committed>>>,
    claims: Vec<Option<Result<Claim>>>,
    post_commit: PostCommit,
}

impl Answers {
    /// Sends the answers and returns the remaining requests. Metrics of answered requests are recorded.
    pub(super) fn deliver(self, batch: FlushBatch, context: &Context) -> FlushBatch {
        self.post_commit.apply(context);
        FlushBatch {
            submits: batch.submits.answer_ready(self.submits),
            claims: batch.claims.answer_ready(self.claims),
            commits: batch.commits.answer_ready(self.commits),
        }
    }
}

/// The state of one flush transaction.
struct Flush<'a> {
    context: &'a Context,
    statements: Statements<'a>,
    locked: LockedSessions,
    /// The session columns beside the heads.
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
            locked: LockedSessions { heads: HashMap::new(), at: now() },
            rows: HashMap::new(),
            changed: HashSet::new(),
            leases: HashMap::new(),
            writes: Writes::default(),
            inserted: 0,
        }
    }

    /// Reads a session unless this flush has read it. Returns whether it exists.
    fn read(&mut self, session: Uuid) -> Result<bool> {
        let Entry::Vacant(vacant) = self.rows.entry(session) else { return Ok(true) };
        let Some((head, row)) = self.statements.session(session).map_err(statement_failed)? else {
            return Ok(false);
        };
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
        let mut keys = IdempotencyKeys::default();
        let answer = submit::accept(self.context, request, &mut self.locked, &mut keys, &mut self.writes)?;
        Ok(match answer {
            SubmitOutcome::Accepted(submitted) => {
                self.changed.insert(session);
                Some(Ok(*submitted))
            }
            SubmitOutcome::Refused(refusal) => Some(Err(refusal)),
            SubmitOutcome::Replay(_) => None,
        })
    }

    fn insert_runs(&mut self) -> Result<()> {
        for run in &self.writes.runs[self.inserted..] {
            self.statements.insert_run(run).map_err(statement_failed)?;
        }
        self.inserted = self.writes.runs.len();
        Ok(())
    }

    /// Commits a small end together with its successors.
    fn commit(&mut self, commit: &Commit) -> Result<Option<Result<Committed>>> {
        let session = commit.fence.session.as_uuid();
        let small = commit.is_small_end() && commit.successors.iter().all(Commit::is_small_end);
        if !small || !self.read(session)? {
            return Ok(None);
        }
        let (Some(locked), Some(row)) = (self.locked.heads.get(&session), self.rows.get(&session)) else {
            return Ok(None);
        };
        let head = &locked.head;
        let is_current = head.current == Some(commit.run) && head.last_commit != Some(commit.id);
        if !is_current || head.verify(&commit.fence).is_err() || locked.has_related || row.budgeted {
            return Ok(None);
        }
        let successor_count = commit.successors.len();
        let queued_runs = match head.pending {
            ..=1 => Vec::new(),
            _ => {
                let prefetch = usize::try_from(commit.prefetch.min(successors::MAX_PREFETCH)).unwrap_or(0);
                let count = successor_count + 1 + prefetch;
                self.statements.queued_runs(session, commit.run.as_uuid(), count).map_err(statement_failed)?
            }
        };
        if queued_runs.iter().take(successor_count + 1).any(|queued| !queued.untouched) {
            return Ok(None);
        }
        let next = queued_runs.iter().take(successor_count).map(|queued| queued.id).collect();
        let mut loaded = CommitContext::for_small_ends(next);
        let planned = plan(self.context, commit, &mut self.locked, &mut loaded, &mut self.writes)?;
        let Ok(planned) = planned else { return Ok(None) };
        self.changed.insert(session);
        let mut queued_runs =
            queued_runs.into_iter().skip(planned.ended() - 1).take_while(|queued| queued.untouched);
        let (successor, settings) = (queued_runs.next(), row.settings.clone());
        let committed = conclude(planned, commit, &mut self.locked, successor, |head, queued, at| {
            let run = queued.into_run(commit.fence.tenant, commit.fence.session)?;
            let grant = grant_run(head, commit.fence, run, settings, at)?;
            let following =
                queued_runs.map(|queued| queued.into_run(commit.fence.tenant, commit.fence.session));
            Ok(Grant { following: following.collect::<Result<_>>()?, ..grant })
        })?;
        Ok(Some(Ok(committed)))
    }

    /// Claims an unowned session with a never-attempted run for a live worker.
    fn claim(&mut self, request: &ClaimRequest) -> Result<Option<Result<Claim>>> {
        let session = request.session.as_uuid();
        if !self.read(session)? || !self.is_alive(request.worker)? {
            return Ok(None);
        }
        if self.locked.heads.get(&session).is_none_or(|it| it.head.tenant != request.tenant) {
            return Ok(None);
        }
        let first = self.statements.queued_runs(session, Uuid::nil(), 1).map_err(statement_failed)?.pop();
        let Some(first) = first.filter(|queued| queued.untouched) else { return Ok(None) };
        let run = first.into_run(request.tenant, request.session)?;
        Ok(self.grant(session, request.worker, run)?.map(|grant| Ok(Claim::Granted(grant))))
    }

    /// Grants a newly accepted run to a worker with a free slot, if the run is the first of an unowned session. Later
    /// runs of the same session then need no wake-up either.
    fn grant_reserved_slot(
        &mut self,
        submitted: &mut Submitted,
        provider: &dyn SlotProvider,
    ) -> Result<Option<SlotGrant>> {
        let session = submitted.run.session.as_uuid();
        let Some(head) = self.locked.heads.get(&session).map(|it| &it.head) else { return Ok(None) };
        if head.owner != Owner::Nobody {
            submitted.wake = false;
            return Ok(None);
        }
        if !head.is_first(submitted.run.seq) {
            return Ok(None);
        }
        let Some(reservation) = provider.reserve_slot(&head.pool, submitted.run.session) else {
            return Ok(None);
        };
        if !self.is_alive(reservation.worker())? {
            return Ok(None);
        }
        let Some(grant) = self.grant(session, reservation.worker(), submitted.run.clone())? else {
            return Ok(None);
        };
        submitted.wake = false;
        Ok(Some((reservation, grant)))
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
        Ok(Some(Box::new(grant_run(locked, fence, run, row.settings.clone(), self.locked.at)?)))
    }

    /// Whether a worker has a live lease.
    fn is_alive(&mut self, worker: WorkerId) -> Result<bool> {
        if let Some(alive) = self.leases.get(&worker) {
            return Ok(*alive);
        }
        let lease = self.statements.lease(worker.as_uuid()).map_err(statement_failed)?;
        let alive = lease.is_some_and(|lease| matches!(lease.owner(), Owner::Alive { .. }));
        self.leases.insert(worker, alive);
        Ok(alive)
    }

    /// Writes all collected changes.
    fn write(mut self) -> Result<PostCommit> {
        for run in &self.writes.finished {
            self.statements.finish_run(run).map_err(statement_failed)?;
        }
        for chunk in &self.writes.chunks {
            let row = self.rows.get_mut(&chunk.session);
            let row =
                row.ok_or_else(|| Error::internal("events of a session that this flush has not read"))?;
            self.statements.append_chunk(chunk, &mut row.stream).map_err(statement_failed)?;
        }
        for session in &self.changed {
            if let (Some(head), Some(row)) = (self.locked.heads.get(session), self.rows.get(session)) {
                self.statements.save_head(row, head).map_err(statement_failed)?;
            }
        }
        let metrics = std::mem::take(&mut self.writes.metrics);
        Ok(PostCommit { metrics, counts: self.writes.counts() })
    }
}
