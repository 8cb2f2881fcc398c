//! The flush thread for SQLite: one transaction for all waiting submits, claims and commits.
//!
//! SQLite allows one writer, and every commit costs a write to disk. Submits, claims and commits that arrive during one
//! transaction therefore all share the next one. [Small](super::fast_path) requests are handled on the thread's own
//! connection; the rest takes the regular path.

use std::{panic::AssertUnwindSafe, sync::Arc};

use futures::FutureExt as _;
use remuda_domain::{Code, Error, Run, error::Result};
use tokio::{runtime::Handle, time::Instant};
use tokio_util::task::TaskTracker;

use super::{
    claim::{claim_batch, claim_in_transaction},
    commit::{commit_batch, commit_in_transaction},
    dialect,
    fast_path::FastPath,
    ownership::{RunnableCheck, check_runnable},
    runs::{RunRead, read_runs},
    store::{ClaimRequest, Coalescers, Context, PostCommit},
    submit::{submit_batch, submit_in_transaction},
};
use crate::{
    Claim, Commit, Committed, NewRun, Submitted,
    coalesce::{Batch, Coalescer, Inbox, retry_on_conflict},
    error::db,
    meters::FlushMeter,
};

pub(super) fn start(context: &Context, tasks: &TaskTracker) -> Coalescers {
    let max = dialect::MAX_BATCH;
    let (submits, new_submits) = Coalescer::with_inbox(max);
    let (claims, new_claims) = Coalescer::with_inbox(max);
    let (commits, new_commits) = Coalescer::with_inbox(max);
    let inboxes = Inboxes { submits: new_submits, claims: new_claims, commits: new_commits };
    let flush_thread =
        FlushThread { context: context.clone(), fast_path: None, requests_since_checkpoint: 0 };
    // A dedicated thread: disk writes must not block the async runtime.
    tasks.spawn_blocking(move || flush_thread.serve(inboxes, &Handle::current()));
    macro_rules! coalesced {
        ($name:literal, $look:path) => {{
            let reader = context.reader.clone();
            Coalescer::start(tasks, max, FlushMeter::new($name), move |batch: Arc<Vec<_>>| {
                let reader = reader.clone();
                async move { $look(&mut *reader.acquire().await.map_err(db)?, &batch).await }
            })
        }};
    }
    let run_reads: Coalescer<RunRead, Run> = coalesced!("look_at_run", read_runs);
    let runnable_checks: Coalescer<RunnableCheck, bool> = coalesced!("look_at_session", check_runnable);
    Coalescers { submits, claims, commits, run_reads, runnable_checks }
}

struct Inboxes {
    submits: Inbox<NewRun, Submitted>,
    claims: Inbox<ClaimRequest, Claim>,
    commits: Inbox<Commit, Committed>,
}

/// The requests of one transaction.
pub(super) struct FlushBatch {
    pub(super) submits: Batch<NewRun, Submitted>,
    pub(super) claims: Batch<ClaimRequest, Claim>,
    pub(super) commits: Batch<Commit, Committed>,
}

/// The answers to a [`FlushBatch`].
#[derive(Default)]
struct FlushAnswers {
    submits: Vec<Result<Submitted>>,
    claims: Vec<Result<Claim>>,
    commits: Vec<Result<Committed>>,
}

impl Inboxes {
    /// Waits for a request of any kind. Returns `false` once all coalescers were dropped.
    async fn wait(&mut self) -> bool {
        tokio::select! {
            true = self.submits.wait() => true,
            true = self.claims.wait() => true,
            true = self.commits.wait() => true,
            else => false,
        }
    }

    fn is_empty(&self) -> bool {
        self.submits.is_empty() && self.claims.is_empty() && self.commits.is_empty()
    }

    fn take(&mut self) -> FlushBatch {
        FlushBatch { submits: self.submits.take(), claims: self.claims.take(), commits: self.commits.take() }
    }
}

struct FlushThread {
    context: Context,
    /// Opened on demand. Without it, all requests take the regular path.
    fast_path: Option<FastPath>,
    /// Requests since this thread's last WAL checkpoint.
    requests_since_checkpoint: usize,
}

/// After this many requests, the thread runs a WAL checkpoint as soon as it is idle. SQLite's automatic checkpoint runs
/// only when the WAL is large, and delays the commit that triggers it and everything queued after it.
const IDLE_CHECKPOINT: usize = 256;

impl FlushThread {
    /// Serves requests until all coalescers were dropped.
    fn serve(mut self, mut inboxes: Inboxes, runtime: &Handle) {
        let meter = FlushMeter::new("all");
        while runtime.block_on(inboxes.wait()) {
            let (batch, begun) = (inboxes.take(), Instant::now());
            let count = batch.count();
            let rest = self.flush_fast_path(batch, runtime);
            if rest.count() > 0 {
                runtime.block_on(flush_or_fail(&self.context, rest));
            }
            meter.flushed(count, begun.elapsed());
            self.requests_since_checkpoint += count;
            if self.requests_since_checkpoint >= IDLE_CHECKPOINT && inboxes.is_empty() {
                self.checkpoint();
            }
        }
    }

    fn checkpoint(&mut self) {
        self.requests_since_checkpoint = 0;
        if let Some(Err(error)) = self.fast_path.as_ref().map(FastPath::checkpoint) {
            tracing::debug!(error = error.chain(), "WAL checkpoint failed; it will be retried");
        }
    }

    /// Handles the small requests. Returns the rest, or everything if that failed.
    fn flush_fast_path(&mut self, batch: FlushBatch, runtime: &Handle) -> FlushBatch {
        if self.fast_path.is_none() {
            self.fast_path = FastPath::open(&self.context)
                .inspect_err(|error| {
                    tracing::warn!(error = error.chain(), "fast path unavailable; using the regular path")
                })
                .ok();
        }
        let Some(fast_path) = &mut self.fast_path else { return batch };
        let permit = runtime.block_on(self.context.writer.permit());
        let flushing = || match permit {
            Ok(_permit) => fast_path.flush(&self.context, &batch),
            Err(error) => Err(error),
        };
        let flushed = std::panic::catch_unwind(AssertUnwindSafe(flushing));
        match flushed.unwrap_or_else(|_| Err(Error::internal("flush panicked"))) {
            Ok(answers) => answers.deliver(batch, &self.context),
            Err(error) => {
                // The connection may have an open transaction.
                self.fast_path = None;
                if error.code() == Code::StorageFull {
                    tracing::warn!(error = error.chain(), requests = batch.count(), "flush failed");
                    return batch.fail(&error);
                }
                tracing::warn!(
                    error = error.chain(),
                    requests = batch.count(),
                    "fast path failed; falling back to the regular path"
                );
                batch
            }
        }
    }
}

async fn flush_or_fail(context: &Context, batch: FlushBatch) {
    let flushing = AssertUnwindSafe(retry_on_conflict(|| flush(context, &batch))).catch_unwind().await;
    match flushing.unwrap_or_else(|_| Err(Error::internal("flush panicked"))) {
        Ok(answers) => batch.answer(answers),
        Err(error) => {
            tracing::warn!(error = error.chain(), requests = batch.count(), "flush failed");
            if error.code() == Code::StorageFull {
                batch.fail(&error);
            } else {
                batch.flush_each_kind(context).await;
            }
        }
    }
}

/// Handles a batch in one transaction. Commits come after submits, so that an owner gets a newly submitted run at once;
/// claims come last, for the sessions that are left.
async fn flush(context: &Context, batch: &FlushBatch) -> Result<FlushAnswers> {
    let mut tx = dialect::begin(&context.writer).await?;
    let (mut all, mut post_commits) = (FlushAnswers::default(), Vec::<PostCommit>::new());
    if !batch.submits.is_empty() {
        let (answers, post_commit) = submit_in_transaction(&mut tx, context, &batch.submits.requests).await?;
        all.submits = answers;
        post_commits.push(post_commit);
    }
    if !batch.commits.is_empty() {
        let (answers, post_commit) = commit_in_transaction(&mut tx, context, &batch.commits.requests).await?;
        all.commits = answers;
        post_commits.push(post_commit);
    }
    if !batch.claims.is_empty() {
        let (answers, post_commit) = claim_in_transaction(&mut tx, context, &batch.claims.requests).await?;
        all.claims = answers;
        post_commits.push(post_commit);
    }
    tx.commit().await.map_err(db)?;
    post_commits.into_iter().for_each(|post_commit| post_commit.apply(context));
    Ok(all)
}

impl FlushBatch {
    pub(super) fn count(&self) -> usize {
        self.submits.requests.len() + self.claims.requests.len() + self.commits.requests.len()
    }

    /// Fails all requests. Returns what is left: nothing.
    fn fail(self, error: &Error) -> Self {
        Self {
            submits: self.submits.fail(error),
            claims: self.claims.fail(error),
            commits: self.commits.fail(error),
        }
    }

    fn answer(self, answers: FlushAnswers) {
        self.submits.answer(answers.submits);
        self.claims.answer(answers.claims);
        self.commits.answer(answers.commits);
    }

    /// Flushes each kind separately, so that one request that cannot be stored does not fail all others.
    async fn flush_each_kind(self, context: &Context) {
        macro_rules! alone {
            ($flush:ident) => {
                |batch: Arc<Vec<_>>| async move { $flush(context, &batch).await }
            };
        }
        self.submits.flush_separately(alone!(submit_batch)).await;
        self.commits.flush_separately(alone!(commit_batch)).await;
        self.claims.flush_separately(alone!(claim_batch)).await;
    }
}
