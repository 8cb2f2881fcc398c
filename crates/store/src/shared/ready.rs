//! Finding parked runs whose wait is over: those whom nobody told, and those for whom a budget was raised.
//!
//! What is found here without a lock is only likely. Whether a run goes on is decided under the lock of its session
//! ([`park::settle`]).

use remuda_domain::{RunId, error::Result};
use sqlx::{AssertSqlSafe, query_as};
use uuid::Uuid;

use super::{
    dialect::{AMONG_1, id_list},
    park::{self, Waiting, waiting_columns},
    spending,
    store::Context,
};
use crate::{SessionChange, Swept, error::db};

/// Runs that are looked at together when a budget was raised.
const RUNS_AT_ONCE: usize = 500;

/// Looks at some parked runs, and lets those go on whose wait is over, whoever should have said so.
pub(super) async fn resume_ready(
    context: &Context,
    after: Option<RunId>,
    limit: u32,
) -> Result<Swept<Vec<SessionChange>>> {
    let mut connection = context.reader.acquire().await.map_err(db)?;
    let page: Vec<Waiting> = query_as(concat!(
        "SELECT ",
        waiting_columns!(),
        " FROM runs WHERE state = 2 AND id > $1 ORDER BY id LIMIT $2"
    ))
    .bind(after.map_or(Uuid::nil(), RunId::as_uuid))
    .bind(i64::from(limit))
    .fetch_all(&mut *connection)
    .await
    .map_err(db)?;
    let over = park::over(&mut connection, &page, false).await?;
    drop(connection);
    let done = park::settle_all(context, &over).await;
    Ok(Swept::page(done, page.iter().map(|waiting| waiting.id), limit))
}

/// Lets runs go on that wait for money and have room for it since this budget was raised. The raise stands, so nothing fails here:
/// what cannot be done now is left to [`resume_ready`].
pub(super) async fn raised(context: &Context, budget: Uuid) -> Vec<(RunId, SessionChange)> {
    let mut resumed = Vec::new();
    match with_room(context, budget).await {
        Ok(runs) => {
            for run in runs {
                match park::settle_raised(context, run).await {
                    Ok(change) => resumed.extend(change.map(|change| (run, change))),
                    Err(error) => {
                        tracing::warn!(%run, error = error.chain(), "a run is left to the next round");
                    }
                }
            }
        }
        Err(error) => {
            tracing::warn!(error = error.chain(), "runs that wait for a budget are left to the next round");
        }
    }
    resumed
}

/// Runs that wait for this budget and seem to have room now.
async fn with_room(context: &Context, budget: Uuid) -> Result<Vec<RunId>> {
    let mut connection = context.reader.acquire().await.map_err(db)?;
    let waiting = spending::runs_that_wait_for(&mut connection, budget).await?;
    let sql = format!(
        concat!("SELECT ", waiting_columns!(), " FROM runs WHERE id {among} AND state + 0 = 2"),
        among = AMONG_1
    );
    let mut over = Vec::new();
    for some in waiting.chunks(RUNS_AT_ONCE) {
        let parked: Vec<Waiting> = query_as(AssertSqlSafe(sql.clone()))
            .bind(id_list(some)?)
            .fetch_all(&mut *connection)
            .await
            .map_err(db)?;
        over.extend(park::over(&mut connection, &parked, true).await?);
    }
    over.sort_unstable();
    Ok(over)
}
