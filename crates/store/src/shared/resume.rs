//! Finds parked runs that may resume: after a missed wake-up, or after a budget was raised.
//!
//! The reads here take no lock, so their results are only candidates. [`park::resume_if_ready`] decides under the lock
//! of the run's session.

use remuda_domain::{RunId, error::Result};
use sqlx::{AssertSqlSafe, query_as};
use uuid::Uuid;

use super::{
    dialect::{AMONG_1, id_list},
    park::{self, ParkedRun, parked_columns},
    spending,
    store::Context,
};
use crate::{ScanPage, SessionChange, error::db};

/// Parked runs checked together after a budget was raised.
const RUNS_AT_ONCE: usize = 500;

/// Scans parked runs, and resumes those whose wait is satisfied.
pub(super) async fn resume_ready(
    context: &Context,
    after: Option<RunId>,
    limit: u32,
) -> Result<ScanPage<Vec<SessionChange>>> {
    let mut connection = context.reader.acquire().await.map_err(db)?;
    let page: Vec<ParkedRun> = query_as(concat!(
        "SELECT ",
        parked_columns!(),
        " FROM runs WHERE state = 2 AND id > $1 ORDER BY id LIMIT $2"
    ))
    .bind(after.map_or(Uuid::nil(), RunId::as_uuid))
    .bind(i64::from(limit))
    .fetch_all(&mut *connection)
    .await
    .map_err(db)?;
    let over = park::ready_to_resume(&mut connection, &page, false).await?;
    drop(connection);
    let done = park::resume_all_ready(context, &over).await;
    Ok(ScanPage::new(done, page.iter().map(|waiting| waiting.id), limit))
}

/// Resumes runs that wait for this budget and have room since it was raised. The raise is committed, so errors are only
/// logged; [`resume_ready`] retries.
pub(super) async fn resume_after_raise(context: &Context, budget: Uuid) -> Vec<(RunId, SessionChange)> {
    let mut resumed = Vec::new();
    match runs_with_room(context, budget).await {
        Ok(runs) => {
            for run in runs {
                match park::resume_after_raise(context, run).await {
                    Ok(change) => resumed.extend(change.map(|change| (run, change))),
                    Err(error) => {
                        tracing::warn!(%run, error = error.chain(), "resuming a run failed; the reconciler will retry");
                    }
                }
            }
        }
        Err(error) => {
            tracing::warn!(
                error = error.chain(),
                "finding runs that wait for a raised budget failed; the reconciler will retry"
            );
        }
    }
    resumed
}

/// Runs that wait for this budget and seem to have room now.
async fn runs_with_room(context: &Context, budget: Uuid) -> Result<Vec<RunId>> {
    let mut connection = context.reader.acquire().await.map_err(db)?;
    let waiting = spending::runs_waiting_for(&mut connection, budget).await?;
    let sql = format!(
        concat!("SELECT ", parked_columns!(), " FROM runs WHERE id {among} AND state + 0 = 2"),
        among = AMONG_1
    );
    let mut over = Vec::new();
    for some in waiting.chunks(RUNS_AT_ONCE) {
        let parked: Vec<ParkedRun> = query_as(AssertSqlSafe(sql.clone()))
            .bind(id_list(some)?)
            .fetch_all(&mut *connection)
            .await
            .map_err(db)?;
        over.extend(park::ready_to_resume(&mut connection, &parked, true).await?);
    }
    over.sort_unstable();
    Ok(over)
}
