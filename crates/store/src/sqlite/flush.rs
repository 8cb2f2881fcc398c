//! One lane for everything that writes frequently.
//!
//! SQLite has room for one writer, and every commit costs a write to the disk. So submits, claims and commits that gather while one
//! transaction is under way all share the next one. What is [small](super::swift) of it is done at once, on the lane's own connection and
//! thread; the rest goes the usual way.

use std::{panic::AssertUnwindSafe, sync::Arc};

use futures::FutureExt as _;
use remuda_domain::{Error, Run, error::Result};
use tokio::{runtime::Handle, time::Instant};
use tokio_util::task::TaskTracker;

use super::{
    claim::{claim_batch, claim_within},
    commit::{commit_batch, commit_within},
    dialect,
    ownership::{SessionLook, look_at_sessions},
    runs::{RunLook, look_at_runs},
    store::{Aftermath, ClaimRequest, Context, Lanes},
    submit::{submit_batch, submit_within},
    swift::Swift,
};
use crate::{
    Claim, Commit, Committed, NewRun, Submitted,
    coalesce::{Coalescer, Gathered, Inbox, retrying},
    error::db,
    meters::Batches,
};

pub(super) fn start(context: &Context, tasks: &TaskTracker) -> Lanes {
    let max = dialect::MAX_BATCH;
    let (submits, new_submits) = Coalescer::gather(max);
    let (claims, new_claims) = Coalescer::gather(max);
    let (commits, new_commits) = Coalescer::gather(max);
    let inboxes = Inboxes { submits: new_submits, claims: new_claims, commits: new_commits };
    let lane = Lane { context: context.clone(), swift: None, unwritten: 0 };
    // A thread of its own: whoever writes to the disk must not hold up those who serve callers.
    tasks.spawn_blocking(move || lane.serve(inboxes, &Handle::current()));
    macro_rules! coalesced {
        ($name:literal, $look:path) => {{
            let reader = context.reader.clone();
            Coalescer::start(tasks, max, Batches::new($name), move |batch: Arc<Vec<_>>| {
                let reader = reader.clone();
                async move { $look(&mut *reader.acquire().await.map_err(db)?, &batch).await }
            })
        }};
    }
    let run_looks: Coalescer<RunLook, Run> = coalesced!("look_at_run", look_at_runs);
    let session_looks: Coalescer<SessionLook, bool> = coalesced!("look_at_session", look_at_sessions);
    Lanes { submits, claims, commits, run_looks, session_looks }
}

struct Inboxes {
    submits: Inbox<NewRun, Submitted>,
    claims: Inbox<ClaimRequest, Claim>,
    commits: Inbox<Commit, Committed>,
}

/// What one transaction does.
pub(super) struct Load {
    pub(super) submits: Gathered<NewRun, Submitted>,
    pub(super) claims: Gathered<ClaimRequest, Claim>,
    pub(super) commits: Gathered<Commit, Committed>,
}

/// The answers to it.
#[derive(Default)]
struct Done {
    submits: Vec<Result<Submitted>>,
    claims: Vec<Result<Claim>>,
    commits: Vec<Result<Committed>>,
}

impl Inboxes {
    /// Waits for whatever comes first. `false` when nothing will come any more.
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

    fn take(&mut self) -> Load {
        Load { submits: self.submits.take(), claims: self.claims.take(), commits: self.commits.take() }
    }
}

struct Lane {
    context: Context,
    /// Opened when there is something to do. Without it everything goes the usual way.
    swift: Option<Swift>,
    /// Requests since the log was last written back from here.
    unwritten: usize,
}

/// After so many requests the log is written back as soon as nobody waits. SQLite does so by itself only when there is much of it, and then
/// those wait whose commit it was, and all behind them.
const IDLE_CHECKPOINT: usize = 256;

impl Lane {
    /// Runs until nothing will come any more.
    fn serve(mut self, mut inboxes: Inboxes, runtime: &Handle) {
        let batches = Batches::new("all");
        while runtime.block_on(inboxes.wait()) {
            let (load, begun) = (inboxes.take(), Instant::now());
            let count = load.count();
            let rest = self.flush_swiftly(load, runtime);
            if rest.count() > 0 {
                runtime.block_on(flush_or_fail(&self.context, rest));
            }
            batches.flushed(count, begun.elapsed());
            self.unwritten += count;
            if self.unwritten >= IDLE_CHECKPOINT && inboxes.is_empty() {
                self.write_back();
            }
        }
    }

    fn write_back(&mut self) {
        self.unwritten = 0;
        if let Some(Err(error)) = self.swift.as_ref().map(Swift::write_back) {
            tracing::debug!(error = error.chain(), "the log is written back later");
        }
    }

    /// Does what is small. Returns the rest: all of it, if that failed.
    fn flush_swiftly(&mut self, load: Load, runtime: &Handle) -> Load {
        if self.swift.is_none() {
            self.swift = Swift::open(&self.context)
                .inspect_err(|error| tracing::warn!(error = error.chain(), "everything goes the long way"))
                .ok();
        }
        let Some(swift) = &mut self.swift else { return load };
        let turn = runtime.block_on(self.context.writer.turn());
        let flushing = || match turn {
            Ok(_turn) => swift.flush(&self.context, &load),
            Err(error) => Err(error),
        };
        let flushed = std::panic::catch_unwind(AssertUnwindSafe(flushing));
        match flushed.unwrap_or_else(|_| Err(Error::internal("a flush panicked"))) {
            Ok(answers) => answers.give(load, &self.context),
            Err(error) => {
                tracing::warn!(error = error.chain(), requests = load.count(), "a flush goes the long way");
                // Its connection may be in the middle of something.
                self.swift = None;
                load
            }
        }
    }
}

async fn flush_or_fail(context: &Context, load: Load) {
    let flushing = AssertUnwindSafe(retrying(|| flush(context, &load))).catch_unwind().await;
    match flushing.unwrap_or_else(|_| Err(Error::internal("a flush panicked"))) {
        Ok(done) => load.answer(done),
        Err(error) => {
            tracing::warn!(error = error.chain(), requests = load.count(), "a flush failed");
            load.flush_apart(context).await;
        }
    }
}

/// Does all of it in one transaction. Commits come after submits, so that an owner takes the next run at once; claims after these, for what
/// is left.
async fn flush(context: &Context, load: &Load) -> Result<Done> {
    let mut tx = dialect::begin(&context.writer).await?;
    let (mut done, mut told) = (Done::default(), Vec::<Aftermath>::new());
    if !load.submits.is_empty() {
        let (answers, aftermath) = submit_within(&mut tx, context, &load.submits.requests).await?;
        done.submits = answers;
        told.push(aftermath);
    }
    if !load.commits.is_empty() {
        let (answers, aftermath) = commit_within(&mut tx, context, &load.commits.requests).await?;
        done.commits = answers;
        told.push(aftermath);
    }
    if !load.claims.is_empty() {
        let (answers, aftermath) = claim_within(&mut tx, context, &load.claims.requests).await?;
        done.claims = answers;
        told.push(aftermath);
    }
    tx.commit().await.map_err(db)?;
    told.into_iter().for_each(|aftermath| aftermath.tell(context));
    Ok(done)
}

impl Load {
    pub(super) fn count(&self) -> usize {
        self.submits.requests.len() + self.claims.requests.len() + self.commits.requests.len()
    }

    fn answer(self, done: Done) {
        self.submits.answer(done.submits);
        self.claims.answer(done.claims);
        self.commits.answer(done.commits);
    }

    /// Each kind by itself, so that one request that cannot be stored does not take all others with it.
    async fn flush_apart(self, context: &Context) {
        macro_rules! alone {
            ($flush:ident) => {
                |batch: Arc<Vec<_>>| async move { $flush(context, &batch).await }
            };
        }
        self.submits.flush_alone(alone!(submit_batch)).await;
        self.commits.flush_alone(alone!(commit_batch)).await;
        self.claims.flush_alone(alone!(claim_batch)).await;
    }
}
