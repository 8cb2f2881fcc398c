//! The fast path for small runs on SQLite.
//!
//! A statement through the driver is a message to another thread and back, and its rows are copied value by value. A
//! small run needs a few rows of one session. The flush thread therefore reads, lets the shared functions decide, and
//! writes on its own connection. Each session is read once and written once per flush, however many requests change it.
//! Requests that are not small, and requests to be refused, take the regular path.

use std::collections::{HashMap, HashSet, hash_map::Entry};

use remuda_domain::{Error, Run, WorkerId, error::Result, session::Owner};
use rusqlite::{Connection, TransactionBehavior};
use uuid::Uuid;

use super::{
    apply,
    chunks::LANDMARK_EVERY,
    commit::{CommitContext, conclude, is_simple_end, plan},
    dialect,
    flush::FlushBatch,
    lock::LockedSessions,
    peek::{self, PeekedSession},
    placement::{self, SlotGrant},
    store::{ClaimRequest, Context, PostCommit},
    submit::{self, AcceptedRun, IdempotencyKeys, SubmitOutcome},
    successors,
    write_set::WriteSet,
};
use crate::{
    Claim, Commit, Committed, NewRun, Submitted,
    error::raw_sqlite,
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

impl FastPath {
    pub(super) fn open(context: &Context) -> Result<Self> {
        Ok(Self { connection: open(context).map_err(raw_sqlite)? })
    }

    /// Runs a WAL checkpoint that does not wait for readers.
    pub(super) fn checkpoint(&self) -> Result<()> {
        self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).map_err(raw_sqlite)
    }

    /// Handles the small requests of a batch in one transaction. On failure, nothing was written: unless the disk is
    /// full, all requests take the regular path.
    pub(super) fn flush(&mut self, context: &Context, batch: &FlushBatch) -> Result<Answers> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate);
        let transaction = transaction.map_err(raw_sqlite)?;
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
        // Last, because a commit or a claim of this flush may have changed the owner.
        let mut slot_grants = Vec::new();
        for accepted in submits.iter().flatten().flatten() {
            slot_grants.extend(flush.place(&accepted.run)?);
        }
        let submits = submits.into_iter().map(|answer| flush.submitted(answer)).collect::<Result<_>>()?;
        let post_commit = flush.write()?;
        transaction.commit().map_err(raw_sqlite)?;
        slot_grants.into_iter().for_each(SlotGrant::deliver);
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
    leases: Leases<'a>,
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
            leases: Leases { connection, known: HashMap::new() },
            writes: WriteSet::default(),
            inserted: 0,
        }
    }

    /// Reads a session unless this flush has read it. Returns whether it exists.
    fn read(&mut self, session: Uuid) -> Result<bool> {
        let Entry::Vacant(vacant) = self.sessions.entry(session) else { return Ok(true) };
        let Some((head, peeked)) = peek::session(self.connection, session).map_err(raw_sqlite)? else {
            return Ok(false);
        };
        self.locked.heads.insert(session, head.into_head_with_owner()?);
        vacant.insert(peeked);
        Ok(true)
    }

    fn submit(&mut self, request: &NewRun) -> Result<Option<Result<AcceptedRun>>> {
        let session = request.run.session.as_uuid();
        if !submit::is_simple(request) || !self.read(session)? {
            return Ok(None);
        }
        let mut keys = IdempotencyKeys::default();
        let answer = submit::accept(self.context, request, &mut self.locked, &mut keys, &mut self.writes)?;
        Ok(match answer {
            SubmitOutcome::Accepted(accepted) => {
                self.changed.insert(session);
                Some(Ok(*accepted))
            }
            SubmitOutcome::Refused(refusal) => Some(Err(refusal)),
            SubmitOutcome::Replay(_) => None,
        })
    }

    /// The answer to a submit, once all changes of this flush are decided.
    fn submitted(&self, answer: Option<Result<AcceptedRun>>) -> Result<Option<Result<Submitted>>> {
        let accepted = match answer {
            Some(Ok(accepted)) => accepted,
            Some(Err(refusal)) => return Ok(Some(Err(refusal))),
            None => return Ok(None),
        };
        let head = self.locked.heads.get(&accepted.run.session.as_uuid());
        let head = head.ok_or_else(|| Error::internal("run accepted without its session"))?;
        Ok(Some(Ok(accepted.submitted(head))))
    }

    fn insert_runs(&mut self) -> Result<()> {
        for run in &self.writes.runs[self.inserted..] {
            apply::write_raw(self.connection, run).map_err(raw_sqlite)?;
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
                    .map_err(raw_sqlite)?
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
        if !self.read(session)? {
            return Ok(None);
        }
        let Some(pool) = self.leases.live_pool(request.worker)? else { return Ok(None) };
        let (Some(locked), Some(peeked)) = (self.locked.heads.get_mut(&session), self.sessions.get(&session))
        else {
            return Ok(None);
        };
        let settings = &peeked.settings;
        let is_meant = locked.head.tenant == request.tenant && locked.head.pool.as_str() == pool;
        if !is_meant || !placement::can_be_granted(locked, settings) {
            return Ok(None);
        }
        let first = peek::queued_runs(self.connection, session, Uuid::nil(), 1).map_err(raw_sqlite)?;
        let Some(first) = first.into_iter().next().filter(RunRow::is_untouched) else { return Ok(None) };
        let granted =
            placement::grant_to(request.worker, first.into_run()?, locked, settings, self.locked.at)?;
        self.changed.insert(session);
        Ok(granted.map(|grant| Ok(Claim::Granted(grant))))
    }

    /// Grants the session of an accepted run to a worker with a free slot, if possible.
    fn place(&mut self, run: &Run) -> Result<Option<SlotGrant>> {
        let session = run.session.as_uuid();
        let (Some(locked), Some(peeked)) = (self.locked.heads.get_mut(&session), self.sessions.get(&session))
        else {
            return Ok(None);
        };
        let (slots, leases, at) = (&*self.context.slots, &mut self.leases, self.locked.at);
        let is_alive = |worker| Ok(leases.live_pool(worker)?.is_some());
        let grant = placement::place(slots, run, locked, &peeked.settings, at, is_alive)?;
        if grant.is_some() {
            self.changed.insert(session);
        }
        Ok(grant)
    }

    /// Writes all collected changes.
    fn write(mut self) -> Result<PostCommit> {
        self.writes.save_heads(&self.locked, self.changed);
        if !self.writes.is_small() {
            return Err(Error::internal("the fast path collected rows that it does not write"));
        }
        for label in &self.writes.labels {
            apply::write_raw(self.connection, label).map_err(raw_sqlite)?;
        }
        for run in &self.writes.finished {
            apply::write_raw(self.connection, run).map_err(raw_sqlite)?;
        }
        for chunk in std::mem::take(&mut self.writes.chunks) {
            let session = self.sessions.get_mut(&chunk.session_id);
            let session =
                session.ok_or_else(|| Error::internal("events of a session that this flush has not read"))?;
            append(self.connection, chunk, session).map_err(raw_sqlite)?;
        }
        for head in &mut self.writes.heads {
            head.last_chunk = self.sessions.get(&head.id).and_then(|session| session.last_chunk);
            apply::write_raw(self.connection, &*head).map_err(raw_sqlite)?;
        }
        Ok(self.writes.post_commit())
    }
}

/// The leases of workers, each read once per flush.
struct Leases<'a> {
    connection: &'a Connection,
    /// The pools of live workers.
    known: HashMap<WorkerId, Option<String>>,
}

impl Leases<'_> {
    /// The pool of a worker whose lease is live.
    fn live_pool(&mut self, worker: WorkerId) -> Result<Option<&str>> {
        let pool = match self.known.entry(worker) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => {
                let lease = peek::lease(self.connection, worker.as_uuid()).map_err(raw_sqlite)?;
                let live = lease.filter(|it| matches!(it.lease.owner(), Owner::Alive { .. }));
                unknown.insert(live.map(|it| it.pool))
            }
        };
        Ok(pool.as_deref())
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
