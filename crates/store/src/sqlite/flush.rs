//! One lane for everything that is frequent.
//!
//! SQLite has room for one writer, and every commit costs a write to the disk and makes what others have read before outdated. So submits,
//! claims, commits and looks that gather while one transaction is under way all share the next one, on one connection.

use std::{panic::AssertUnwindSafe, sync::Arc};

use futures::FutureExt as _;
use remuda_domain::{Error, Run, error::Result};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::{
    claim::{claim_batch, claim_within},
    commit::{commit_batch, commit_within},
    dialect,
    ownership::{SessionLook, look_at_sessions},
    runs::{RunLook, look_at_runs},
    store::{Aftermath, ClaimRequest, Context, Lanes},
    submit::{submit_batch, submit_within},
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
    let (run_looks, new_run_looks) = Coalescer::gather(max);
    let (session_looks, new_session_looks) = Coalescer::gather(max);
    let inboxes = Inboxes {
        submits: new_submits,
        claims: new_claims,
        commits: new_commits,
        run_looks: new_run_looks,
        session_looks: new_session_looks,
    };
    tasks.spawn(serve(context.clone(), inboxes));
    Lanes { submits, claims, commits, run_looks, session_looks }
}

struct Inboxes {
    submits: Inbox<NewRun, Submitted>,
    claims: Inbox<ClaimRequest, Claim>,
    commits: Inbox<Commit, Committed>,
    run_looks: Inbox<RunLook, Run>,
    session_looks: Inbox<SessionLook, bool>,
}

/// What one transaction does.
struct Load {
    submits: Gathered<NewRun, Submitted>,
    claims: Gathered<ClaimRequest, Claim>,
    commits: Gathered<Commit, Committed>,
    run_looks: Gathered<RunLook, Run>,
    session_looks: Gathered<SessionLook, bool>,
}

/// The answers to it.
#[derive(Default)]
struct Done {
    submits: Vec<Result<Submitted>>,
    claims: Vec<Result<Claim>>,
    commits: Vec<Result<Committed>>,
    run_looks: Vec<Result<Run>>,
    session_looks: Vec<Result<bool>>,
}

impl Inboxes {
    /// Waits for whatever comes first. `false` when nothing will come any more.
    async fn wait(&mut self) -> bool {
        tokio::select! {
            true = self.submits.wait() => true,
            true = self.claims.wait() => true,
            true = self.commits.wait() => true,
            true = self.run_looks.wait() => true,
            true = self.session_looks.wait() => true,
            else => false,
        }
    }

    fn take(&mut self) -> Load {
        Load {
            submits: self.submits.take(),
            claims: self.claims.take(),
            commits: self.commits.take(),
            run_looks: self.run_looks.take(),
            session_looks: self.session_looks.take(),
        }
    }
}

async fn serve(context: Context, mut inboxes: Inboxes) {
    let batches = Batches::new("all");
    while inboxes.wait().await {
        let (load, begun) = (inboxes.take(), Instant::now());
        let count = load.count();
        let flushing = AssertUnwindSafe(retrying(|| flush(&context, &load))).catch_unwind().await;
        match flushing.unwrap_or_else(|_| Err(Error::internal("a flush panicked"))) {
            Ok(done) => load.answer(done),
            Err(error) => {
                tracing::warn!(error = error.chain(), requests = count, "a flush failed");
                load.flush_apart(&context).await;
            }
        }
        batches.flushed(count, begun.elapsed());
    }
}

/// Does all of it in one transaction. Commits come after submits, so that an owner takes the next run at once; claims after these, for what
/// is left; and who only looks sees it all.
async fn flush(context: &Context, load: &Load) -> Result<Done> {
    if load.only_looks() {
        return look(&mut *context.writer.acquire().await.map_err(db)?, load).await;
    }
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
    let Done { run_looks, session_looks, .. } = look(&mut tx, load).await?;
    tx.commit().await.map_err(db)?;
    told.into_iter().for_each(|aftermath| aftermath.tell(context));
    Ok(Done { run_looks, session_looks, ..done })
}

/// Looks see one moment each, so that they need no transaction of their own. On the writer's connection, which has the pages.
async fn look(connection: &mut dialect::Connection, load: &Load) -> Result<Done> {
    let mut done = Done::default();
    if !load.run_looks.is_empty() {
        done.run_looks = look_at_runs(&mut *connection, &load.run_looks.requests).await?;
    }
    if !load.session_looks.is_empty() {
        done.session_looks = look_at_sessions(connection, &load.session_looks.requests).await?;
    }
    Ok(done)
}

impl Load {
    fn only_looks(&self) -> bool {
        self.submits.is_empty() && self.commits.is_empty() && self.claims.is_empty()
    }

    fn count(&self) -> usize {
        self.submits.requests.len()
            + self.claims.requests.len()
            + self.commits.requests.len()
            + self.run_looks.requests.len()
            + self.session_looks.requests.len()
    }

    fn answer(self, done: Done) {
        self.submits.answer(done.submits);
        self.claims.answer(done.claims);
        self.commits.answer(done.commits);
        self.run_looks.answer(done.run_looks);
        self.session_looks.answer(done.session_looks);
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
        self.run_looks.flush_alone(alone!(run_looks)).await;
        self.session_looks.flush_alone(alone!(session_looks)).await;
    }
}

async fn run_looks(context: &Context, batch: &[RunLook]) -> Result<Vec<Result<Run>>> {
    look_at_runs(&mut *context.reader.acquire().await.map_err(db)?, batch).await
}

async fn session_looks(context: &Context, batch: &[SessionLook]) -> Result<Vec<Result<bool>>> {
    look_at_sessions(&mut *context.reader.acquire().await.map_err(db)?, batch).await
}
