//! Execution times of runs: their own, and while they wait for children.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use remuda_domain::{
    Timestamp,
    error::Result,
    run::{self, ParkReason},
};
use sqlx::{AssertSqlSafe, query_as};
use sqlx_macros::FromRow;
use uuid::Uuid;

use super::dialect::{AMONG_1, Connection, id_list};
use crate::{error::db, time::DbTime};

#[derive(Debug, FromRow)]
struct RunTimes {
    id: Uuid,
    started_at: Option<DbTime>,
    finished_at: Option<DbTime>,
    parked: Option<String>,
    parked_at: Option<DbTime>,
    paused_ms: i64,
    timeout_ms: i64,
}

impl RunTimes {
    /// Execution time without the time spent waiting for children. No run is executed for longer than its timeout, whatever
    /// a clock that has jumped says.
    fn own_time(&self, now: Timestamp) -> Duration {
        let until = self.finished_at.or(self.parked_at).map_or(now, |at| at.0);
        let worked = run::worked(self.started_at.map(|at| at.0), until, millis(self.paused_ms));
        worked.min(millis(self.timeout_ms))
    }

    fn waits_for_children(&self) -> bool {
        self.parked.as_deref() == Some(ParkReason::Children.as_str())
    }
}

/// A run that a parked run waits for, with its execution time when that wait began.
#[derive(Debug, FromRow)]
struct AwaitedRun {
    run_id: Uuid,
    awaited: Uuid,
    worked_ms: i64,
}

fn millis(number: i64) -> Duration {
    Duration::from_millis(u64::try_from(number).unwrap_or(0))
}

/// The execution time of each of these runs so far. Ids of approvals are ignored.
///
/// A run that is parked for children counts as working while they work. That time is written only when it resumes, so
/// it is computed here from its descendants.
pub(super) async fn worked_times(
    connection: &mut Connection,
    runs: &[Uuid],
    now: Timestamp,
) -> Result<HashMap<Uuid, Duration>> {
    let (mut found, mut waits): (Vec<RunTimes>, HashMap<Uuid, Vec<AwaitedRun>>) = Default::default();
    let (mut seen, mut level): (HashSet<Uuid>, Vec<Uuid>) = (HashSet::new(), runs.to_vec());
    while !level.is_empty() {
        seen.extend(&level);
        let times = load_times(connection, &level).await?;
        let parked: Vec<Uuid> = times.iter().filter(|it| it.waits_for_children()).map(|it| it.id).collect();
        found.extend(times);
        level.clear();
        for wait in waits_of(connection, &parked).await? {
            if seen.insert(wait.awaited) {
                level.push(wait.awaited);
            }
            waits.entry(wait.run_id).or_default().push(wait);
        }
    }
    let mut worked: HashMap<Uuid, Duration> = HashMap::with_capacity(found.len());
    // Descendants come after the runs that wait for them.
    for times in found.iter().rev() {
        let below = waits.remove(&times.id).unwrap_or_default();
        worked.insert(times.id, times.own_time(now) + longest(&below, &worked));
    }
    Ok(worked)
}

/// How long the runs that a parked run waits for have worked since its wait began: the maximum.
pub(super) async fn worked_during_wait(
    connection: &mut Connection,
    run: Uuid,
    now: Timestamp,
) -> Result<Duration> {
    let waits = waits_of(connection, &[run]).await?;
    let ids: Vec<Uuid> = waits.iter().map(|wait| wait.awaited).collect();
    Ok(longest(&waits, &worked_times(connection, &ids, now).await?))
}

fn longest(waits: &[AwaitedRun], worked: &HashMap<Uuid, Duration>) -> Duration {
    let since = |wait: &AwaitedRun| Some(worked.get(&wait.awaited)?.saturating_sub(millis(wait.worked_ms)));
    waits.iter().filter_map(since).max().unwrap_or_default()
}

async fn load_times(connection: &mut Connection, runs: &[Uuid]) -> Result<Vec<RunTimes>> {
    let sql = format!(
        "SELECT c.id, coalesce(c.started_at, CASE WHEN s.current_run = c.id THEN s.current_started_at END) AS started_at, \
         c.finished_at, c.parked, c.parked_at, c.paused_ms, c.timeout_ms FROM runs c JOIN sessions s ON s.id = c.session_id \
         WHERE c.id {AMONG_1}"
    );
    query_as(AssertSqlSafe(sql)).bind(id_list(runs)?).fetch_all(connection).await.map_err(db)
}

async fn waits_of(connection: &mut Connection, runs: &[Uuid]) -> Result<Vec<AwaitedRun>> {
    if runs.is_empty() {
        return Ok(Vec::new());
    }
    let sql = format!("SELECT run_id, awaited, worked_ms FROM waits WHERE run_id {AMONG_1}");
    query_as(AssertSqlSafe(sql)).bind(id_list(runs)?).fetch_all(connection).await.map_err(db)
}
