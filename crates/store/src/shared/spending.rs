//! What runs spend: the budgets that cover them, and what their questions cost.
//!
//! A run is covered by the budget of the run at the top of its part of the tree, by that of its session, and by all above these. What
//! is reserved is not a number of the budget but the sum of its reservations, so giving back is to delete.

use std::collections::{BTreeMap, HashMap, HashSet};

use remuda_domain::{
    budget::{Amount, Budget, Total},
    error::Result,
};
use sqlx::{AssertSqlSafe, query, query_as, query_scalar};
use uuid::Uuid;

use super::dialect::{AMONG_1, Connection, id_list};
use crate::{
    Budgeted,
    error::db,
    rows::{BudgetRow, amount_from_db, amount_to_db, count_to_db},
    written::{BudgetInsert, SpentWrite},
};

/// Ids that a statement is given at once.
const IDS_AT_ONCE: usize = 500;

/// The columns of a [`BudgetRow`] of `budgets b`.
macro_rules! budget_columns {
    () => {
        "b.id, b.limit_tokens, b.limit_micros, b.spent_tokens, b.spent_micros, \
         CAST((SELECT coalesce(sum(v.tokens), 0) FROM reservations v WHERE v.budget_id = b.id) AS bigint) AS reserved_tokens, \
         CAST((SELECT coalesce(sum(v.micros), 0) FROM reservations v WHERE v.budget_id = b.id) AS bigint) AS reserved_micros"
    };
}

/// The runs `$1` with each budget that covers them, as `cover (run_id, id)`. Each part looks up keys, whatever a planner makes of it.
fn cover() -> String {
    format!(
        "WITH RECURSIVE cover (run_id, id) AS \
         (SELECT r.id, r.budget_id FROM runs r WHERE r.id {AMONG_1} AND r.budget_id IS NOT NULL \
         UNION SELECT r.id, s.budget_id FROM runs r JOIN sessions s ON s.id = r.session_id \
         WHERE r.id {AMONG_1} AND s.budget_id IS NOT NULL \
         UNION SELECT c.run_id, b.parent_id FROM cover c JOIN budgets b ON b.id = c.id WHERE b.parent_id IS NOT NULL)"
    )
}

/// The budgets that cover these runs, in the order of their ids.
pub(super) async fn covering(connection: &mut Connection, runs: &[Uuid]) -> Result<Vec<Uuid>> {
    let sql = format!("{} SELECT DISTINCT id FROM cover ORDER BY id", cover());
    query_scalar(AssertSqlSafe(sql)).bind(id_list(runs)?).fetch_all(connection).await.map_err(db)
}

pub(super) async fn load(connection: &mut Connection, ids: &[Uuid]) -> Result<HashMap<Uuid, Budget>> {
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let sql =
        format!(concat!("SELECT ", budget_columns!(), " FROM budgets b WHERE b.id {among}"), among = AMONG_1);
    let rows: Vec<BudgetRow> =
        query_as(AssertSqlSafe(sql)).bind(id_list(ids)?).fetch_all(connection).await.map_err(db)?;
    Ok(rows.into_iter().map(|row| (row.id, row.into_budget())).collect())
}

/// What these budgets limit; nothing if there are none.
pub(super) fn budgeted(budgets: &HashMap<Uuid, Budget>) -> Option<Budgeted> {
    let limits = |limited: fn(&Budget) -> bool| budgets.values().any(limited);
    (!budgets.is_empty()).then(|| Budgeted {
        tokens: limits(|budget| budget.limit.tokens.is_some()),
        money: limits(|budget| budget.limit.micros.is_some()),
    })
}

/// Whether every budget that covers the run has room for this much.
pub(super) async fn has_room(connection: &mut Connection, run: Uuid, amount: Amount) -> Result<bool> {
    Ok(with_room(connection, &[(run, amount)]).await?.contains(&run))
}

/// Of runs that want to ask their next question, those with room for it in every budget that covers them. What such a run still
/// holds is for a question that is over, and would be given up for the next: it takes no room.
pub(super) async fn with_room(
    connection: &mut Connection,
    wanted: &[(Uuid, Amount)],
) -> Result<HashSet<Uuid>> {
    let runs: Vec<Uuid> = wanted.iter().map(|(run, _)| *run).collect();
    let mut covers: HashMap<Uuid, Vec<Uuid>> = HashMap::new();
    for (run, budget) in covers_of(connection, &runs).await? {
        covers.entry(run).or_default().push(budget);
    }
    let ids: HashSet<Uuid> = covers.values().flatten().copied().collect();
    let budgets = load(connection, &ids.into_iter().collect::<Vec<_>>()).await?;
    let own = held_by(connection, &runs).await?;
    let fits = |(run, amount): &&(Uuid, Amount)| {
        let mut covering = covers.get(run).into_iter().flatten();
        covering.all(|id| {
            let held = own.get(&(*run, *id)).copied().unwrap_or_default();
            budgets.get(id).is_none_or(|budget| budget.without(held).has_room(*amount))
        })
    };
    Ok(wanted.iter().filter(fits).map(|(run, _)| *run).collect())
}

/// Each of these runs with each budget that covers it.
async fn covers_of(connection: &mut Connection, runs: &[Uuid]) -> Result<Vec<(Uuid, Uuid)>> {
    let sql = format!("{} SELECT run_id, id FROM cover", cover());
    query_as(AssertSqlSafe(sql)).bind(id_list(runs)?).fetch_all(connection).await.map_err(db)
}

/// What these runs hold, by run and budget.
async fn held_by(connection: &mut Connection, runs: &[Uuid]) -> Result<HashMap<(Uuid, Uuid), Amount>> {
    let sql = format!("SELECT run_id, budget_id, tokens, micros FROM reservations WHERE run_id {AMONG_1}");
    let rows: Vec<(Uuid, Uuid, i64, i64)> =
        query_as(AssertSqlSafe(sql)).bind(id_list(runs)?).fetch_all(connection).await.map_err(db)?;
    let mut held: HashMap<(Uuid, Uuid), Amount> = HashMap::new();
    for (run, budget, tokens, micros) in rows {
        let sum = held.entry((run, budget)).or_default();
        *sum = *sum + amount_from_db(tokens, micros);
    }
    Ok(held)
}

/// Parked runs that wait for money and that this budget covers, found from it downwards: by the budgets below it, those that belong
/// to these, and the sessions that do. One by one, because a planner that knows little would begin at the other end. `+ 0` keeps it
/// from walking the index of all that wait instead of looking up the runs of a session.
pub(super) async fn runs_that_wait_for(connection: &mut Connection, budget: Uuid) -> Result<Vec<Uuid>> {
    let budgets: Vec<Uuid> = query_scalar(
        "WITH RECURSIVE below (id) AS (SELECT id FROM budgets WHERE id = $1 \
         UNION ALL SELECT b.id FROM below t JOIN budgets b ON b.parent_id = t.id WHERE b.parent_id IS NOT NULL) \
         SELECT id FROM below",
    )
    .bind(budget)
    .fetch_all(&mut *connection)
    .await
    .map_err(db)?;
    let runs_of_budgets =
        format!("SELECT id FROM runs WHERE budget_id {AMONG_1} AND state = 2 AND parked = 'budget'");
    let sessions_of_budgets =
        format!("SELECT id FROM sessions WHERE budget_id {AMONG_1} AND budget_id IS NOT NULL");
    let runs_of_sessions = format!(
        "SELECT id FROM runs WHERE session_id {AMONG_1} AND state < 10 AND state + 0 = 2 AND parked = 'budget'"
    );
    let mut runs = among(connection, runs_of_budgets, &budgets).await?;
    let sessions = among(connection, sessions_of_budgets, &budgets).await?;
    runs.extend(among(connection, runs_of_sessions, &sessions).await?);
    runs.sort_unstable();
    runs.dedup();
    Ok(runs)
}

/// The ids that a statement finds with these, some at a time.
async fn among(connection: &mut Connection, sql: String, ids: &[Uuid]) -> Result<Vec<Uuid>> {
    let mut found = Vec::new();
    for some in ids.chunks(IDS_AT_ONCE) {
        let sql = AssertSqlSafe(sql.clone());
        found.extend(
            query_scalar::<_, Uuid>(sql)
                .bind(id_list(some)?)
                .fetch_all(&mut *connection)
                .await
                .map_err(db)?,
        );
    }
    Ok(found)
}

pub(super) async fn insert_budget(connection: &mut Connection, budget: &BudgetInsert) -> Result<()> {
    let (spent_tokens, spent_micros) = amount_to_db(budget.spent);
    query(
        "INSERT INTO budgets (id, tenant_id, parent_id, limit_tokens, limit_micros, spent_tokens, spent_micros) \
         VALUES ($1, $2, $3, $4, $5, $6, $7)",
    )
    .bind(budget.id)
    .bind(budget.tenant)
    .bind(budget.parent)
    .bind(budget.limit.tokens.map(count_to_db))
    .bind(budget.limit.micros.map(count_to_db))
    .bind(spent_tokens)
    .bind(spent_micros)
    .execute(connection)
    .await
    .map_err(db)?;
    Ok(())
}

/// Counts what questions cost: for their runs, and in all budgets that cover these. The caller has locked the budgets. Says how much
/// that was, without what had been counted before.
pub(super) async fn spend(connection: &mut Connection, all: &[SpentWrite]) -> Result<Total> {
    let mut by_run: BTreeMap<Uuid, (Total, Amount)> = BTreeMap::new();
    for SpentWrite { run, spent } in all {
        let counted =
            query("INSERT INTO spent_steps (run_id, step_id) VALUES ($1, $2) ON CONFLICT DO NOTHING")
                .bind(run)
                .bind(spent.step.as_uuid())
                .execute(&mut *connection)
                .await
                .map_err(db)?;
        // A new owner told of it again.
        if counted.rows_affected() == 0 {
            continue;
        }
        let (total, amount) = by_run.entry(*run).or_default();
        *total = *total + Total { model_calls: 1, usage: spent.usage, micros: spent.micros };
        *amount = *amount + spent.amount();
    }
    let steps: Vec<Uuid> = all.iter().map(|it| it.spent.step.as_uuid()).collect();
    let sql = format!("DELETE FROM reservations WHERE step_id {AMONG_1}");
    query(AssertSqlSafe(sql)).bind(id_list(&steps)?).execute(&mut *connection).await.map_err(db)?;
    let mut by_budget: BTreeMap<Uuid, Amount> = BTreeMap::new();
    for (run, (total, amount)) in &by_run {
        add_to_run(connection, *run, total).await?;
        for budget in covering(connection, &[*run]).await? {
            let sum = by_budget.entry(budget).or_default();
            *sum = *sum + *amount;
        }
    }
    for (budget, amount) in by_budget {
        let (tokens, micros) = amount_to_db(amount);
        query("UPDATE budgets SET spent_tokens = spent_tokens + $2, spent_micros = spent_micros + $3 WHERE id = $1")
            .bind(budget)
            .bind(tokens)
            .bind(micros)
            .execute(&mut *connection)
            .await
            .map_err(db)?;
    }
    Ok(by_run.into_values().fold(Total::default(), |sum, (total, _)| sum + total))
}

async fn add_to_run(connection: &mut Connection, run: Uuid, total: &Total) -> Result<()> {
    let columns = [
        ("model_calls", total.model_calls),
        ("input_tokens", total.usage.input_tokens),
        ("output_tokens", total.usage.output_tokens),
        ("cached_tokens", total.usage.cached_input_tokens),
        ("cache_write_tokens", total.usage.cache_write_tokens),
        ("reasoning_tokens", total.usage.reasoning_tokens),
        ("cost_micros", total.micros),
    ];
    let sets: Vec<String> = columns
        .iter()
        .zip(2..)
        .map(|((column, _), number)| format!("{column} = coalesce({column}, 0) + ${number}"))
        .collect();
    let sql = format!("UPDATE runs SET {} WHERE id = $1", sets.join(", "));
    let mut update = query(AssertSqlSafe(sql)).bind(run);
    for (_, number) in columns {
        update = update.bind(count_to_db(number));
    }
    update.execute(connection).await.map_err(db)?;
    Ok(())
}
