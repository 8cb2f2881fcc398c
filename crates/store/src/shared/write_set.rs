//! The write path: functions without I/O decide a change, a [`WriteSet`] collects it, and is written.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use remuda_domain::{
    Appended, EventBody, Run, RunId, RunState, Timestamp,
    error::Result,
    event::NewEvent,
    run::{Failure, ParkReason},
    step::{self, Step},
    tool::CallStatus,
};
use sqlx::query;
use uuid::Uuid;

use super::{
    apply, approvals, children,
    dialect::{self, Connection, WriteTransaction},
    lock::LockedSessions,
    related_rows::{self, RelatedRows},
    sessions, spending,
    store::{Context, PostCommit, append},
    worked_time,
};
use crate::{
    Counts,
    error::{db, json},
    meters::MetricUpdates,
    row_writes::{
        ApprovalInsert, BudgetInsert, CancelMark, ChildInsert, Chunk, ContentWrite, LabelInsert,
        MessageWrite, ParkWrite, RunRelease, SpentWrite, StepWrite,
    },
    rows::{HeadWrite, LockedHead, RunFinish, RunInsert, amount_to_db},
    time::DbTime,
};

/// What a batch writes.
#[derive(Debug, Default)]
pub(super) struct WriteSet {
    pub(super) cancels: Vec<CancelMark>,
    pub(super) sessions: Vec<ChildInsert>,
    pub(super) runs: Vec<RunInsert>,
    pub(super) labels: Vec<LabelInsert>,
    pub(super) budgets: Vec<BudgetInsert>,
    pub(super) approvals: Vec<ApprovalInsert>,
    pub(super) spent: Vec<SpentWrite>,
    pub(super) finished: Vec<RunFinish>,
    pub(super) released: Vec<RunRelease>,
    pub(super) steps: Vec<StepWrite>,
    pub(super) messages: Vec<MessageWrite>,
    pub(super) contents: Vec<ContentWrite>,
    /// Sessions with their new active agents.
    pub(super) agents: Vec<(Uuid, String)>,
    /// Sessions with their new permissions.
    pub(super) permissions: Vec<(Uuid, Option<String>)>,
    /// Parents of ended runs, which may wait for them, see [`park::resume_all_ready`](super::park::resume_all_ready).
    pub(super) parents: Vec<RunId>,
    /// Ended runs that may have related rows.
    pub(super) ended_with_related: Vec<Uuid>,
    /// Metrics to record after the commit.
    pub(super) metrics: MetricUpdates,
    /// Sessions whose runs now have related rows.
    pub(super) newly_related: Vec<Uuid>,
    pub(super) chunks: Vec<Chunk>,
    pub(super) heads: Vec<HeadWrite>,
}

/// The end of a run that no worker reported.
pub(super) struct EndedRun<'a> {
    pub(super) run: &'a Run,
    /// The steps that its owners committed.
    pub(super) steps: &'a [Step],
    pub(super) related: &'a RelatedRows,
    pub(super) state: RunState,
    pub(super) failure: &'a Failure,
    /// Attempts that ended with it, and how many of them were lost.
    pub(super) attempts: (i32, i32),
}

impl WriteSet {
    /// Assigns cursors to events and collects the row that stores them.
    pub(super) fn append(&mut self, locked: &mut LockedHead, events: Vec<NewEvent>) -> Result<Appended> {
        let (events, chunk) = append(locked, events)?;
        self.chunks.extend(chunk);
        Ok(events)
    }

    /// Queues a run that its session has admitted, and returns `before` and the event that reports it.
    pub(super) fn queue(
        &mut self,
        run: &Run,
        covered_by: Option<Uuid>,
        locked: &mut LockedHead,
        mut before: Vec<NewEvent>,
    ) -> Result<Appended> {
        let (tenant_id, session_id, run_id) = (run.tenant.as_uuid(), run.session.as_uuid(), run.id.as_uuid());
        self.runs.push(RunInsert::new(run, covered_by)?);
        let label = |(key, value): (&str, &str)| {
            let (key, value) = (key.to_owned(), value.to_owned());
            LabelInsert { session_id, tenant_id, key, value, run_id }
        };
        self.labels.extend(run.labels.iter().map(label));
        self.metrics.submitted(run.input.kind(), &locked.head.pool, run.tenant);
        let (kind, pending) = (run.input.kind().to_owned(), locked.head.pending);
        let body = EventBody::RunQueued { seq: run.seq, kind, pending, labels: run.labels.clone() };
        before.push(NewEvent { run: Some(run.id), at: run.created_at, body });
        self.append(locked, before)
    }

    /// Marks a session whose runs now have related rows.
    pub(super) fn mark_related(&mut self, locked: &mut LockedHead) {
        if !locked.has_related {
            locked.has_related = true;
            self.newly_related.push(locked.head.session.as_uuid());
        }
    }

    /// Ends a run without its worker, and returns the events for [`WriteSet::append`].
    pub(super) fn end(
        &mut self,
        locked: &mut LockedHead,
        ended: &EndedRun<'_>,
        at: Timestamp,
    ) -> Result<Vec<NewEvent>> {
        let EndedRun { run, steps, related, state, failure, attempts } = *ended;
        // A run that never started has no calls to settle.
        let settled = match run.started_at {
            Some(_) => step::settle(&run.input, steps, state, locked.head.epoch, at),
            None => Vec::new(),
        };
        locked.head.retire(run.id);
        self.metrics.ended(run, state, at);
        self.parents.extend(run.parent);
        if locked.has_related {
            self.ended_with_related.push(run.id.as_uuid());
        }
        let parked = run.parked.map(|parked| (at - parked.at).num_milliseconds().max(0));
        self.finished.push(RunFinish {
            id: run.id.as_uuid(),
            session_id: run.session.as_uuid(),
            state: state.to_db(),
            started_at: run.started_at.map(DbTime),
            finished_at: DbTime(at),
            failure: Some(json(failure)?),
            last_steps: if settled.is_empty() { None } else { Some(json(&settled)?) },
            attempts: attempts.0,
            lost_attempts: attempts.1,
            cancel_stopped_at: None,
            paused_ms: parked.unwrap_or(0),
        });
        let outcomes = settled.iter().filter_map(Step::call_outcome).cloned();
        let interrupted = outcomes.filter(|outcome| outcome.status == CallStatus::Interrupted);
        let end = EventBody::for_end(state, Some(failure)).unwrap_or(EventBody::RunFailed(failure.clone()));
        let bodies = interrupted.map(EventBody::ToolFailed).chain([end]);
        let events = bodies.map(|body| NewEvent { run: Some(run.id), at, body });
        Ok(related.withdrawal_events(run.id, at).chain(events).collect())
    }

    /// Collects the heads of changed sessions.
    pub(super) fn save_heads(&mut self, locked: &LockedSessions, sessions: impl IntoIterator<Item = Uuid>) {
        // Several changes of a batch may have changed the same session.
        let sessions: HashSet<Uuid> = sessions.into_iter().collect();
        let changed = sessions.iter().filter_map(|id| locked.heads.get(id));
        self.heads.extend(changed.map(HeadWrite::new));
    }

    /// Whether it consists of runs, ends, events and heads, so that a fast path can write it.
    pub(super) fn is_small(&self) -> bool {
        let Self {
            cancels,
            sessions,
            budgets,
            approvals,
            spent,
            released,
            steps,
            messages,
            contents,
            agents,
            permissions,
            parents,
            ended_with_related,
            newly_related,
            runs: _,
            labels: _,
            finished: _,
            chunks: _,
            heads: _,
            metrics: _,
        } = self;
        cancels.is_empty()
            && sessions.is_empty()
            && budgets.is_empty()
            && approvals.is_empty()
            && spent.is_empty()
            && released.is_empty()
            && steps.is_empty()
            && messages.is_empty()
            && contents.is_empty()
            && agents.is_empty()
            && permissions.is_empty()
            && parents.is_empty()
            && ended_with_related.is_empty()
            && newly_related.is_empty()
    }

    /// What to record after the commit, without spending.
    pub(super) fn post_commit(&mut self) -> PostCommit {
        let mut counts = Counts { submitted: self.runs.len() as u64, ..Counts::default() };
        for run in &self.finished {
            match RunState::from_db(run.state) {
                Some(RunState::Completed) => counts.completed += 1,
                Some(RunState::Failed) => counts.failed += 1,
                Some(RunState::Cancelled) => counts.cancelled += 1,
                Some(RunState::TimedOut) => counts.timed_out += 1,
                Some(RunState::Queued | RunState::Running | RunState::Parked) | None => {}
            }
        }
        PostCommit { metrics: std::mem::take(&mut self.metrics), counts }
    }

    /// Writes everything and commits the transaction.
    pub(super) async fn commit(self, context: &Context, mut tx: WriteTransaction) -> Result<()> {
        let post_commit = self.write(&mut tx).await?;
        tx.commit().await.map_err(db)?;
        post_commit.apply(context);
        Ok(())
    }

    /// Writes everything. The caller holds the locks, and records what is returned after the commit.
    pub(super) async fn write(mut self, connection: &mut Connection) -> Result<PostCommit> {
        let mut post_commit = self.post_commit();
        // Before the ends: only an unfinished run can be marked.
        for mark in &self.cancels {
            mark_cancel(connection, mark).await?;
        }
        for session in &self.sessions {
            children::insert_session(connection, session).await?;
        }
        apply::write(connection, &self.runs).await?;
        apply::write(connection, &self.labels).await?;
        for budget in &self.budgets {
            spending::insert_budget(connection, budget).await?;
        }
        for approval in &self.approvals {
            approvals::insert(connection, approval).await?;
        }
        // Before the ends, which delete the record of counted steps.
        if !self.spent.is_empty() {
            let total = spending::record_spending(connection, &self.spent).await?;
            let counts = &mut post_commit.counts;
            (counts.input_tokens, counts.output_tokens) =
                (total.usage.input_tokens, total.usage.output_tokens);
            counts.cost_micros = total.micros;
        }
        apply::write(connection, &self.finished).await?;
        if !self.ended_with_related.is_empty() {
            related_rows::release(connection, &self.ended_with_related).await?;
        }
        for run in &self.released {
            release_run(connection, run).await?;
        }
        if !self.steps.is_empty() {
            self.keep_last_version_of_each_step();
            dialect::save_steps(connection, &self.steps).await?;
        }
        if !self.messages.is_empty() {
            dialect::insert_messages(connection, &self.messages).await?;
        }
        // Sorted, so that transactions that write the same texts cannot deadlock.
        self.contents.sort_unstable_by_key(|content| (content.tenant, content.hash));
        self.contents.dedup_by_key(|content| (content.tenant, content.hash));
        for content in &self.contents {
            save_content(connection, content).await?;
        }
        for (session, agent) in &self.agents {
            set_agent(connection, *session, agent).await?;
        }
        for (session, permissions) in &self.permissions {
            sessions::set_permissions(connection, *session, permissions.as_deref()).await?;
        }
        for session in &self.newly_related {
            set_related_flag(connection, *session).await?;
        }
        apply::write(connection, &self.chunks).await?;
        apply::write(connection, &self.heads).await?;
        Ok(post_commit)
    }

    /// Keeps the last of several versions of a step: PostgreSQL cannot update a row twice in one statement.
    fn keep_last_version_of_each_step(&mut self) {
        let mut seen = HashSet::new();
        self.steps.reverse();
        self.steps.retain(|step| seen.insert((step.run, step.id)));
        self.steps.reverse();
    }
}

/// Records a cancellation request. A later request changes neither time nor reason.
async fn mark_cancel(connection: &mut Connection, mark: &CancelMark) -> Result<()> {
    query("UPDATE runs SET cancel_at = $2, cancel_reason = $3 WHERE id = $1 AND state < 10 AND cancel_at IS NULL")
        .bind(mark.run)
        .bind(mark.at)
        .bind(mark.reason.as_str())
        .execute(connection)
        .await
        .map_err(db)?;
    Ok(())
}

/// Stores a text; rare, because workers send only texts that they do not know to be stored.
async fn save_content(connection: &mut Connection, content: &ContentWrite) -> Result<()> {
    query("INSERT INTO contents (tenant_id, hash, body) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING")
        .bind(content.tenant)
        .bind(content.hash.as_slice())
        .bind(content.body.as_str())
        .execute(connection)
        .await
        .map_err(db)?;
    Ok(())
}

async fn set_agent(connection: &mut Connection, session: Uuid, agent: &str) -> Result<()> {
    query("UPDATE sessions SET agent = $2 WHERE id = $1")
        .bind(session)
        .bind(agent)
        .execute(connection)
        .await
        .map_err(db)?;
    Ok(())
}

/// Sets the flag, once in the life of a session.
async fn set_related_flag(connection: &mut Connection, session: Uuid) -> Result<()> {
    query("UPDATE sessions SET ties = $2 WHERE id = $1")
        .bind(session)
        .bind(true)
        .execute(connection)
        .await
        .map_err(db)?;
    Ok(())
}

async fn release_run(connection: &mut Connection, run: &RunRelease) -> Result<()> {
    let parked = run.parked.as_ref();
    let amount = parked.and_then(|it| it.amount).map(amount_to_db);
    query(
        "UPDATE runs SET state = $2, attempts = attempts + 1, lost_attempts = lost_attempts + $3, \
         started_at = coalesce(started_at, $4), parked = $5, parked_at = $6, wait_needed = $7, wait_tokens = $8, \
         wait_micros = $9, worked_ms = $10 WHERE id = $1 AND state < 10",
    )
    .bind(run.id)
    .bind(run.state())
    .bind(run.lost_attempts)
    .bind(run.started_at)
    .bind(parked.map(|it| it.reason.as_str()))
    .bind(parked.map(|it| it.at))
    .bind(parked.and_then(|it| it.needed))
    .bind(amount.map(|(tokens, _)| tokens))
    .bind(amount.map(|(_, micros)| micros))
    .bind(i64::try_from(run.worked.as_millis()).unwrap_or(i64::MAX))
    .execute(&mut *connection)
    .await
    .map_err(db)?;
    match parked {
        Some(parked) => insert_waits(connection, run.id, parked).await,
        None => Ok(()),
    }
}

async fn insert_waits(connection: &mut Connection, run: Uuid, parked: &ParkWrite) -> Result<()> {
    // Work done before the wait is not part of it.
    let worked = match parked.reason {
        ParkReason::Children => worked_time::worked_times(connection, &parked.awaited, parked.at.0).await?,
        ParkReason::Approval | ParkReason::Budget | ParkReason::External => HashMap::new(),
    };
    for awaited in &parked.awaited {
        let worked_ms = worked.get(awaited).map_or(0, Duration::as_millis);
        query("INSERT INTO waits (run_id, awaited, worked_ms) VALUES ($1, $2, $3)")
            .bind(run)
            .bind(awaited)
            .bind(i64::try_from(worked_ms).unwrap_or(i64::MAX))
            .execute(&mut *connection)
            .await
            .map_err(db)?;
    }
    Ok(())
}
