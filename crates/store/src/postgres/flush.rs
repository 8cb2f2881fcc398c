//! Flush tasks for PostgreSQL: one coalescer per kind of call.

use std::sync::Arc;

use remuda_domain::{Run, error::Result};
use tokio_util::task::TaskTracker;

use super::{
    dedicated_connection::DedicatedConnection,
    dialect::{self, Connection},
    fast_path::{claims, commits, submits},
    ownership::{RunnableCheck, check_runnable},
    runs::{RunRead, read_runs},
    store::{Coalescers, Context},
};
use crate::{coalesce::Coalescer, meters::FlushMeter};

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
