//! The fast path for small runs on SQLite.
//!
//! A statement through the driver is a message to another thread and back, and its rows are copied value by value. A
//! small run needs a few rows of one session. The flush thread therefore reads, lets the shared functions decide, and
//! writes on its own connection. Each session is read once and written once per flush, however many requests change it.
//! Requests that are not small, and requests to be refused, take the regular path.

use std::collections::{HashMap, HashSet, hash_map::Entry};

use remuda_domain::{
    Error, Run, WorkerId,
    error::Result,
    session::{ClaimDecision, Owner},
};
use rusqlite::{Connection, TransactionBehavior};
use uuid::Uuid;

use super::{
    apply,
    chunks::LANDMARK_EVERY,
    claim::grant_run,
    commit::{CommitContext, conclude, is_simple_end, plan},
    dialect,
    flush::FlushBatch,
    lock::LockedSessions,
    peek::{self, PeekedSession},
    store::{ClaimRequest, Context, PostCommit},
    submit::{self, IdempotencyKeys, SubmitOutcome},
    successors,
    write_set::WriteSet,
};
use crate::{
    Claim, Commit, Committed, Grant, NewRun, SlotProvider, SlotReservation, Submitted,
    row_writes::Chunk,
    rows::{HeadRunRow, RunRow},
    time::now,
};

/// Size of the statement cache: larger than the number of statements.
const PREPARED: usize = 16;

/// The flush thread's own connection.
#[derive(Debug)]
pub(super) struct FastPath {
    connection: Connection,
}

/// A reserved slot and its grant, to be assigned after the commit.
type SlotGrant = (Box<dyn SlotReservation>, Box<Grant>);

/// A failed statement ends the flush, and all requests take the regular path.
fn statement_failed(error: rusqlite::Error) -> Error {
    Error::internal("the database rejected a statement").with_source(error)
}

impl FastPath {
    pub(super) fn open(context: &Context) -> Result<Self> {
        Ok(Self { connection: open(context).map_err(statement_failed)? })
    }

    /// Runs a WAL checkpoint that does not wait for readers.
    pub(super) fn checkpoint(&self) -> Result<()> {
        self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).map_err(statement_failed)
    }

    /// Handles the small requests of a batch in one transaction. On failure, nothing was written.
    pub(super) fn flush(&mut self, context: &Context, batch: &FlushBatch) -> Result<Answers> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate);
        let transaction = transaction.map_err(statement_failed)?;
        let mut flush = Flush::new(context, &transaction);
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

/// Opens the database with the same settings as [`dialect::open`].
fn open(context: &Context) -> rusqlite::Result<Connection> {
    let path =
        dialect::writer_pool(&context.writer).map(|pool| pool.connect_options().get_filename().to_owned());
    let connection = Connection::open(path.unwrap_or_default())?;
    connection.busy_timeout(dialect::BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(PREPARED);
    for (name, value) in dialect::PRAGMAS {
        connection.pragma_update(None, name, value)?;
    }
    connection.pragma_update(None, "synchronous", "full")?;
    Ok(connection)
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
    connection: &'a Connection,
    locked: LockedSessions,
    /// The sessions of `locked` without their heads.
    sessions: HashMap<Uuid, PeekedSession>,
    changed: HashSet<Uuid>,
    leases: HashMap<WorkerId, bool>,
    writes: WriteSet,
    inserted: usize,
}

impl<'a> Flush<'a> {
    fn new(context: &'a Context, connection: &'a Connection) -> Self {
        Self {
            context,
            connection,
            locked: LockedSessions { heads: HashMap::new(), at: now() },
            sessions: HashMap::new(),
            changed: HashSet::new(),
            leases: HashMap::new(),
            writes: WriteSet::default(),
            inserted: 0,
        }
    }

    /// Reads a session unless this flush has read it. Returns whether it exists.
    fn read(&mut self, session: Uuid) -> Result<bool> {
        let Entry::Vacant(vacant) = self.sessions.entry(session) else { return Ok(true) };
        let Some((head, peeked)) = peek::session(self.connection, session).map_err(statement_failed)? else {
            return Ok(false);
        };
        self.locked.heads.insert(session, head.into_head_with_owner()?);
        vacant.insert(peeked);
        Ok(true)
    }

    fn submit(&mut self, request: &NewRun) -> Result<Option<Result<Submitted>>> {
        let session = request.run.session.as_uuid();
        if !submit::is_simple(request) || !self.read(session)? {
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
            apply::write_raw(self.connection, run).map_err(statement_failed)?;
        }
        self.inserted = self.writes.runs.len();
        Ok(())
    }

    /// Commits a small end together with its successors.
    fn commit(&mut self, commit: &Commit) -> Result<Option<Result<Committed>>> {
        let session = commit.fence.session.as_uuid();
        if !commit.is_small_end() || !self.read(session)? {
            return Ok(None);
        }
        let (Some(locked), Some(peeked)) = (self.locked.heads.get(&session), self.sessions.get(&session))
        else {
            return Ok(None);
        };
        let settings = &peeked.settings;
        if !is_simple_end(commit, locked) || settings.session_budget.is_some() {
            return Ok(None);
        }
        let successor_count = commit.successors.len();
        let queued = match locked.head.pending {
            ..=1 => Vec::new(),
            _ => {
                let prefetch = usize::try_from(commit.prefetch.min(successors::MAX_PREFETCH)).unwrap_or(0);
                let count = successor_count + 1 + prefetch;
                peek::queued_runs(self.connection, session, commit.run.as_uuid(), count)
                    .map_err(statement_failed)?
            }
        };
        if !queued.iter().take(successor_count + 1).all(RunRow::is_untouched) {
            return Ok(None);
        }
        let next = queued.iter().take(successor_count).map(|run| run.id).collect();
        let mut loaded = CommitContext::for_small_ends(next);
        let planned = plan(self.context, commit, &mut self.locked, &mut loaded, &mut self.writes)?;
        let Ok(planned) = planned else { return Ok(None) };
        self.changed.insert(session);
        let mut queued = queued.into_iter().skip(planned.ended() - 1).take_while(RunRow::is_untouched);
        let successor = queued.next().map(|run| HeadRunRow { run, settings: settings.clone() });
        let mut committed = conclude(planned, commit, &mut self.locked, successor)?;
        if let Some(next) = committed.next.as_deref_mut() {
            next.following = queued.map(RunRow::into_run).collect::<Result<_>>()?;
        }
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
        let first = peek::queued_runs(self.connection, session, Uuid::nil(), 1).map_err(statement_failed)?;
        let Some(first) = first.into_iter().next().filter(RunRow::is_untouched) else { return Ok(None) };
        let granted = self.grant(session, request.worker, first.into_run()?)?;
        Ok(granted.map(|grant| Ok(Claim::Granted(grant))))
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
        let (Some(locked), Some(peeked)) = (self.locked.heads.get_mut(&session), self.sessions.get(&session))
        else {
            return Ok(None);
        };
        let has_budget = peeked.settings.session_budget.is_some();
        if locked.head.owner != Owner::Nobody || locked.head.current.is_some() || has_budget {
            return Ok(None);
        }
        let ClaimDecision::Granted { fence } = locked.head.claim(worker) else { return Ok(None) };
        self.changed.insert(session);
        Ok(Some(Box::new(grant_run(locked, fence, run, peeked.settings.clone(), self.locked.at)?)))
    }

    /// Whether a worker has a live lease.
    fn is_alive(&mut self, worker: WorkerId) -> Result<bool> {
        if let Some(alive) = self.leases.get(&worker) {
            return Ok(*alive);
        }
        let lease = peek::lease(self.connection, worker.as_uuid()).map_err(statement_failed)?;
        let alive = lease.is_some_and(|lease| matches!(lease.owner(), Owner::Alive { .. }));
        self.leases.insert(worker, alive);
        Ok(alive)
    }

    /// Writes all collected changes.
    fn write(mut self) -> Result<PostCommit> {
        self.writes.save_heads(&self.locked, self.changed);
        if !self.writes.is_small() {
            return Err(Error::internal("the fast path collected rows that it does not write"));
        }
        for label in &self.writes.labels {
            apply::write_raw(self.connection, label).map_err(statement_failed)?;
        }
        for run in &self.writes.finished {
            apply::write_raw(self.connection, run).map_err(statement_failed)?;
        }
        for chunk in std::mem::take(&mut self.writes.chunks) {
            let session = self.sessions.get_mut(&chunk.session_id);
            let session =
                session.ok_or_else(|| Error::internal("events of a session that this flush has not read"))?;
            append(self.connection, chunk, session).map_err(statement_failed)?;
        }
        for head in &mut self.writes.heads {
            head.last_chunk = self.sessions.get(&head.id).and_then(|session| session.last_chunk);
            apply::write_raw(self.connection, &*head).map_err(statement_failed)?;
        }
        Ok(self.writes.post_commit())
    }
}

/// Appends a chunk to a session's list.
fn append(connection: &Connection, chunk: Chunk, session: &mut PeekedSession) -> rusqlite::Result<()> {
    let is_landmark = chunk.last_cursor / LANDMARK_EVERY > session.last_cursor / LANDMARK_EVERY;
    let chunk = Chunk { previous: session.last_chunk, landmark: Some(is_landmark), ..chunk };
    apply::write_raw(connection, &chunk)?;
    (session.last_chunk, session.last_cursor) = (Some(connection.last_insert_rowid()), chunk.last_cursor);
    Ok(())
}
