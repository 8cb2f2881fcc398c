//! Status of background tasks: their last rounds.

use std::time::Duration;

use remuda_domain::{
    Timestamp,
    background_task::{TaskCounts, TaskRound, TaskStatus},
    error::Result,
};
use serde::{Deserialize, Serialize};
use sqlx::{query, query_as};
use sqlx_macros::FromRow;

use super::{dialect, store::Context};
use crate::error::{db, json, parse};

/// A round as stored.
#[derive(Serialize, Deserialize)]
struct StoredRound {
    holder: String,
    started_at: Timestamp,
    micros: u64,
    result: std::result::Result<TaskCounts, String>,
}

impl StoredRound {
    fn into_round(self, name: &str) -> TaskRound {
        TaskRound {
            name: name.to_owned(),
            holder: self.holder,
            started_at: self.started_at,
            duration: Duration::from_micros(self.micros),
            result: self.result,
        }
    }
}

#[derive(FromRow)]
struct TaskRow {
    name: String,
    rounds: i64,
    failures: i64,
    last_round: String,
    last_notable: Option<String>,
}

impl TaskRow {
    fn into_status(self) -> Result<TaskStatus> {
        let round = |text: &str| Ok(parse::<StoredRound>("task", text)?.into_round(&self.name));
        Ok(TaskStatus {
            last: round(&self.last_round)?,
            rounds: u64::try_from(self.rounds).unwrap_or(0),
            failures: u64::try_from(self.failures).unwrap_or(0),
            last_notable: self.last_notable.as_deref().map(round).transpose()?,
        })
    }
}

pub(super) async fn record(context: &Context, round: &TaskRound) -> Result<()> {
    let stored = json(&StoredRound {
        holder: round.holder.clone(),
        started_at: round.started_at,
        micros: u64::try_from(round.duration.as_micros()).unwrap_or(u64::MAX),
        result: round.result.clone(),
    })?;
    let is_notable = round.result.as_ref().map_or(true, |counts| counts.values().any(|count| *count > 0));
    query(
        "INSERT INTO tasks (name, rounds, failures, last_round, last_notable) VALUES ($1, 1, $2, $3, $4) \
         ON CONFLICT (name) DO UPDATE SET rounds = tasks.rounds + 1, failures = tasks.failures + excluded.failures, \
         last_round = excluded.last_round, last_notable = coalesce(excluded.last_notable, tasks.last_notable)",
    )
    .bind(round.name.as_str())
    .bind(i64::from(round.result.is_err()))
    .bind(stored.as_str())
    .bind(is_notable.then_some(stored.as_str()))
    .execute(&mut *dialect::write_connection(&context.writer).await?)
    .await
    .map_err(db)?;
    Ok(())
}

pub(super) async fn list(context: &Context) -> Result<Vec<TaskStatus>> {
    let rows: Vec<TaskRow> =
        query_as("SELECT name, rounds, failures, last_round, last_notable FROM tasks ORDER BY name")
            .fetch_all(&context.reader)
            .await
            .map_err(db)?;
    rows.into_iter().map(TaskRow::into_status).collect()
}
