//! Runs that wait as data, and how they come to go on.
//!
//! No wake-up is lost. What a run waits for becomes true in a transaction that commits *before* somebody asks whether the run may
//! go on ([`settle`]), and both that question and the parking itself are answered under the lock of the run's session. So either the
//! parking sees that it has come, or the question sees that the run is parked. The same holds for money, with the lock of the budget.

use std::collections::{BTreeSet, HashMap, HashSet};

use remuda_domain::{
    Appended, EventBody, RunId, TenantId, Timestamp,
    budget::Amount,
    error::Result,
    event::NewEvent,
    run::{self, ParkReason},
};
use sqlx::{AssertSqlSafe, FromRow, query, query_as, query_scalar};
use uuid::Uuid;

use super::{
    dialect::{self, AMONG_1, Connection, id_list},
    lock::lock,
    recover, spending,
    store::Context,
    work,
    writes::{self, Writes},
};
use crate::{
    Parking, SessionChange,
    error::{corrupt, db},
    rows::{LockedHead, amount_from_db},
    time::DbTime,
};

/// The runs and approvals that a run is about to wait for, each once, and how many of them it needs.
pub(super) fn awaited(parking: &Parking) -> (Vec<Uuid>, usize) {
    let runs = parking.children.iter().map(|run| run.as_uuid());
    let approvals = parking.approvals.iter().map(|approval| approval.as_uuid());
    let awaited: BTreeSet<Uuid> = runs.chain(approvals).collect();
    // Nobody waits for more than can come.
    let needed = (parking.needed as usize).min(awaited.len());
    (awaited.into_iter().collect(), needed)
}

/// Whether what a run is about to wait for has come already. `made` is what its own commit makes. For money, the caller has
/// locked the budgets that cover the run.
pub(super) async fn has_come(
    connection: &mut Connection,
    run: RunId,
    parking: &Parking,
    made: &HashSet<Uuid>,
) -> Result<bool> {
    if parking.reason == ParkReason::Budget {
        return match parking.amount {
            Some(amount) => spending::has_room(connection, run.as_uuid(), amount).await,
            None => Ok(false),
        };
    }
    if parking.needed == 0 {
        return Ok(false);
    }
    let (awaited, needed) = awaited(parking);
    let older: Vec<Uuid> = awaited.into_iter().filter(|id| !made.contains(id)).collect();
    if older.len() < needed {
        return Ok(false);
    }
    Ok(older.len() - outstanding(connection, &older).await? >= needed)
}

/// How many of these runs and approvals are still to come.
async fn outstanding(connection: &mut Connection, ids: &[Uuid]) -> Result<usize> {
    let mut count = 0;
    for sql in [
        format!("SELECT count(CASE WHEN state < 10 THEN 1 END) FROM runs WHERE id {AMONG_1}"),
        format!("SELECT count(CASE WHEN state = 'pending' THEN 1 END) FROM approvals WHERE id {AMONG_1}"),
    ] {
        let found: i64 = query_scalar(AssertSqlSafe(sql))
            .bind(id_list(ids)?)
            .fetch_one(&mut *connection)
            .await
            .map_err(db)?;
        count += usize::try_from(found).unwrap_or(0);
    }
    Ok(count)
}

/// A wait `w` is over. Whatever else a planner makes of it, these are two look-ups of keys.
const COME: &str = "coalesce((SELECT c.state FROM runs c WHERE c.id = w.awaited), 10) >= 10 \
    AND coalesce((SELECT a.state FROM approvals a WHERE a.id = w.awaited), '') <> 'pending'";

/// The columns of a [`Waiting`].
macro_rules! waiting_columns {
    () => {
        "id, parked, parked_at, wait_needed, wait_tokens, wait_micros"
    };
}
pub(super) use waiting_columns;

/// How a parked run waits.
#[derive(Debug, FromRow)]
pub(super) struct Waiting {
    pub(super) id: Uuid,
    parked: String,
    parked_at: DbTime,
    wait_needed: Option<i32>,
    wait_tokens: Option<i64>,
    wait_micros: Option<i64>,
}

impl Waiting {
    /// None if the run is not parked. The lock of its session keeps it so.
    pub(super) async fn load(connection: &mut Connection, run: Uuid) -> Result<Option<Self>> {
        query_as(concat!("SELECT ", waiting_columns!(), " FROM runs WHERE id = $1 AND state + 0 = 2"))
            .bind(run)
            .fetch_optional(connection)
            .await
            .map_err(db)
    }

    fn reason(&self) -> Result<ParkReason> {
        ParkReason::parse(&self.parked).ok_or_else(|| corrupt("park reason"))
    }

    fn wants_money(&self) -> bool {
        self.parked == ParkReason::Budget.as_str()
    }

    /// What a run that waits for its budget could not reserve.
    pub(super) fn amount(&self) -> Option<Amount> {
        Some(amount_from_db(self.wait_tokens?, self.wait_micros?))
    }

    /// How many of its waits have to come; nothing for a run that goes on when someone says so.
    fn needed(&self) -> Option<i64> {
        self.wait_needed.map(i64::from).filter(|needed| *needed > 0)
    }

    /// Whether the run may go on, see [`over`].
    pub(super) async fn is_over(&self, connection: &mut Connection, raised: bool) -> Result<bool> {
        Ok(!over(connection, std::slice::from_ref(self), raised).await?.is_empty())
    }

    /// Puts the run back into its place at the head of the line. Its time goes on where it stood.
    pub(super) async fn end(
        &self,
        connection: &mut Connection,
        locked: &mut LockedHead,
        at: Timestamp,
        writes: &mut Writes,
    ) -> Result<Appended> {
        let (run, reason) = (RunId::from_uuid(self.id), self.reason()?);
        let waited = (at - self.parked_at.0).to_std().unwrap_or_default();
        let worked = match reason {
            ParkReason::Children => work::during_wait(connection, self.id, at).await?,
            ParkReason::Approval | ParkReason::Budget | ParkReason::External => std::time::Duration::ZERO,
        };
        let pause = run::pause(reason, waited, worked).as_millis();
        query(
            "UPDATE runs SET state = 0, parked = NULL, parked_at = NULL, wait_needed = NULL, wait_tokens = NULL, \
             wait_micros = NULL, paused_ms = paused_ms + $2 WHERE id = $1",
        )
        .bind(self.id)
        .bind(i64::try_from(pause).unwrap_or(i64::MAX))
        .execute(&mut *connection)
        .await
        .map_err(db)?;
        if locked.ties {
            query("DELETE FROM waits WHERE run_id = $1")
                .bind(self.id)
                .execute(connection)
                .await
                .map_err(db)?;
        }
        writes.append(locked, vec![NewEvent { run: Some(run), at, body: EventBody::RunResumed }])
    }
}

/// Of these parked runs, those that may go on. A budget that was `raised` also lets those go on that did not say how much they want.
pub(super) async fn over(
    connection: &mut Connection,
    parked: &[Waiting],
    raised: bool,
) -> Result<Vec<RunId>> {
    let (for_money, for_others): (Vec<&Waiting>, Vec<&Waiting>) =
        parked.iter().partition(|waiting| waiting.wants_money());
    let wanted = |waiting: &&Waiting| Some((waiting.id, waiting.amount().or(raised.then(Amount::default))?));
    let wanted: Vec<(Uuid, Amount)> = for_money.iter().filter_map(wanted).collect();
    let mut over = match wanted.is_empty() {
        true => HashSet::new(),
        false => spending::with_room(connection, &wanted).await?,
    };
    let needed: HashMap<Uuid, i64> =
        for_others.iter().filter_map(|waiting| Some((waiting.id, waiting.needed()?))).collect();
    if !needed.is_empty() {
        let ids: Vec<Uuid> = needed.keys().copied().collect();
        let sql = format!(
            "SELECT w.run_id, count(*) FROM waits w WHERE w.run_id {AMONG_1} AND {COME} GROUP BY w.run_id"
        );
        let come: Vec<(Uuid, i64)> =
            query_as(AssertSqlSafe(sql)).bind(id_list(&ids)?).fetch_all(connection).await.map_err(db)?;
        let enough = |(run, come): &(Uuid, i64)| needed.get(run).is_some_and(|needed| come >= needed);
        over.extend(come.iter().filter(|it| enough(it)).map(|(run, _)| *run));
    }
    Ok(over.into_iter().map(RunId::from_uuid).collect())
}

/// Lets a run go on if it is parked and what it waits for has come. With a tenant, only a run of that tenant.
pub(super) async fn settle(
    context: &Context,
    tenant: Option<TenantId>,
    run: RunId,
) -> Result<Option<SessionChange>> {
    look_again(context, tenant, run, false).await
}

/// The same for a run that waits for money, after a budget that covers it was raised.
pub(super) async fn settle_raised(context: &Context, run: RunId) -> Result<Option<SessionChange>> {
    look_again(context, None, run, true).await
}

async fn look_again(
    context: &Context,
    tenant: Option<TenantId>,
    run: RunId,
    raised: bool,
) -> Result<Option<SessionChange>> {
    let found: Option<(Uuid, Uuid, i16)> =
        query_as("SELECT session_id, tenant_id, state FROM runs WHERE id = $1")
            .bind(run.as_uuid())
            .fetch_optional(&context.reader)
            .await
            .map_err(db)?;
    let Some((session, owner, state)) = found else { return Ok(None) };
    // An end is final, so it can be seen without the lock. Whether a live run is parked cannot.
    if state >= 10 || tenant.is_some_and(|tenant| tenant.as_uuid() != owner) {
        return Ok(None);
    }
    let mut tx = dialect::begin(&context.writer).await?;
    let mut locked = lock(&mut tx, std::iter::once(session)).await?;
    let Some(waiting) = Waiting::load(&mut tx, run.as_uuid()).await? else { return Ok(None) };
    if !waiting.is_over(&mut tx, raised).await? {
        return Ok(None);
    }
    let at = locked.at;
    let Some(head) = locked.heads.get_mut(&session) else { return Ok(None) };
    let mut writes = Writes::default();
    let events = waiting.end(&mut tx, head, at, &mut writes).await?;
    let change = recover::change(head, events);
    writes.write(&mut tx).await?;
    writes::save(&mut tx, &locked.heads, [session]).await?;
    tx.commit().await.map_err(db)?;
    Ok(Some(change))
}

/// Asks for every one of these runs, mostly parents of runs that have ended. Those that cannot be asked now are found by the next
/// [`resume_ready`](super::ready::resume_ready), and keep nobody else waiting.
pub(super) async fn settle_all(context: &Context, runs: &[RunId]) -> Vec<SessionChange> {
    let mut changes = Vec::new();
    for run in runs.iter().map(|run| run.as_uuid()).collect::<BTreeSet<Uuid>>() {
        let run = RunId::from_uuid(run);
        match settle(context, None, run).await {
            Ok(change) => changes.extend(change),
            Err(error) => tracing::warn!(%run, error = error.chain(), "a run is left to the next round"),
        }
    }
    changes
}
