//! Spending: the budgets that cover runs, and the costs of model calls.
//!
//! A run is covered by the nearest budget of itself or an ancestor run, by the budget of its session, and by all
//! budgets above these. The reserved amount of a budget is the sum of its reservations, so deleting a reservation
//! returns it.

use std::collections::{BTreeMap, HashMap, HashSet};

use remuda_domain::{
    budget::{Amount, Budget, Total},
    error::Result,
};
use sqlx::{AssertSqlSafe, query, query_as, query_scalar};
use uuid::Uuid;

use super::dialect::{AMONG_1, Connection, id_list};
use crate::{
    BudgetLimits,
    error::db,
    row_writes::{BudgetInsert, SpentWrite},
    rows::{BudgetRow, amount_from_db, amount_to_db, count_to_db},
};

/// Ids per statement.
const IDS_AT_ONCE: usize = 500;

/// The columns of a [`BudgetRow`] of `budgets b`.
macro_rules! budget_columns {
    () => {
        "b.id, b.limit_tokens, b.limit_micros, b.spent_tokens, b.spent_micros, \
         CAST((SELECT coalesce(sum(v.tokens), 0) FROM reservations v WHERE v.budget_id = b.id) AS bigint) AS reserved_tokens, \
         CAST((SELECT coalesce(sum(v.micros), 0) FROM reservations v WHERE v.budget_id = b.id) AS bigint) AS reserved_micros"
    };
}

/// CTE `cover (run_id, id)`: the runs `$1` with each budget that covers them. Each part is a key lookup, whatever the
/// planner estimates.
fn cover_cte() -> String {
    format!(
        "WITH RECURSIVE cover (run_id, id) AS \
         (SELECT r.id, r.budget_id FROM runs r WHERE r.id {AMONG_1} AND r.budget_id IS NOT NULL \
         UNION SELECT r.id, s.budget_id FROM runs r JOIN sessions s ON s.id = r.session_id \
         WHERE r.id {AMONG_1} AND s.budget_id IS NOT NULL \
         UNION SELECT c.run_id, b.parent_id FROM cover c JOIN budgets b ON b.id = c.id WHERE b.parent_id IS NOT NULL)"
    )
}

/// The budgets that cover these runs, in id order.
pub(super) async fn covering_budgets(connection: &mut Connection, runs: &[Uuid]) -> Result<Vec<Uuid>> {
    let sql = format!("{} SELECT DISTINCT id FROM cover ORDER BY id", cover_cte());
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

/// Which resources these budgets limit; `None` without budgets.
pub(super) fn limits(budgets: &HashMap<Uuid, Budget>) -> Option<BudgetLimits> {
    let limits = |limited: fn(&Budget) -> bool| budgets.values().any(limited);
    (!budgets.is_empty()).then(|| BudgetLimits {
        tokens: limits(|budget| budget.limit.tokens.is_some()),
        money: limits(|budget| budget.limit.micros.is_some()),
    })
}

/// Whether every budget that covers the run has room for an amount.
pub(super) async fn has_room(connection: &mut Connection, run: Uuid, amount: Amount) -> Result<bool> {
    Ok(runs_with_room(connection, &[(run, amount)]).await?.contains(&run))
}

/// Which of these runs have room for their next model call in every budget that covers them. A reservation that such a
/// run still holds belongs to an earlier call and would be replaced, so it takes no room.
pub(super) async fn runs_with_room(
    connection: &mut Connection,
    amounts: &[(Uuid, Amount)],
) -> Result<HashSet<Uuid>> {
    let runs: Vec<Uuid> = amounts.iter().map(|(run, _)| *run).collect();
    let mut covers: HashMap<Uuid, Vec<Uuid>> = HashMap::new();
    for (run, budget) in covers_of(connection, &runs).await? {
        covers.entry(run).or_default().push(budget);
    }
    let ids: HashSet<Uuid> = covers.values().flatten().copied().collect();
    let budgets = load(connection, &ids.into_iter().collect::<Vec<_>>()).await?;
    let own = reserved_by(connection, &runs).await?;
    let fits = |(run, amount): &&(Uuid, Amount)| {
        let mut covering = covers.get(run).into_iter().flatten();
        covering.all(|id| {
            let held = own.get(&(*run, *id)).copied().unwrap_or_default();
            budgets.get(id).is_none_or(|budget| budget.without(held).has_room(*amount))
        })
    };
    Ok(amounts.iter().filter(fits).map(|(run, _)| *run).collect())
}

/// Pairs of these runs and the budgets that cover them.
async fn covers_of(connection: &mut Connection, runs: &[Uuid]) -> Result<Vec<(Uuid, Uuid)>> {
    let sql = format!("{} SELECT run_id, id FROM cover", cover_cte());
    query_as(AssertSqlSafe(sql)).bind(id_list(runs)?).fetch_all(connection).await.map_err(db)
}

/// The reservations of these runs, by run and budget.
async fn reserved_by(connection: &mut Connection, runs: &[Uuid]) -> Result<HashMap<(Uuid, Uuid), Amount>> {
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

/// Parked runs that wait for a budget and that this one covers, found from the top: budgets below it, runs of these
/// budgets, sessions of these budgets, and their runs. Separate statements, because a planner without statistics would
/// start at the other end. `+ 0` keeps it from walking the index of all parked runs instead of looking up the runs of a
/// session.
pub(super) async fn runs_waiting_for(connection: &mut Connection, budget: Uuid) -> Result<Vec<Uuid>> {
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
    let mut runs = ids_matching(connection, runs_of_budgets, &budgets).await?;
    let sessions = ids_matching(connection, sessions_of_budgets, &budgets).await?;
    runs.extend(ids_matching(connection, runs_of_sessions, &sessions).await?);
    runs.sort_unstable();
    runs.dedup();
    Ok(runs)
}

/// The ids that a statement returns for these ids, in batches.
async fn ids_matching(connection: &mut Connection, sql: String, ids: &[Uuid]) -> Result<Vec<Uuid>> {
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

/// Counts the costs of model calls: for their runs, and in all budgets that cover these. The caller has locked the
/// budgets. Returns the total, without steps that were counted before.
pub(super) async fn record_spending(connection: &mut Connection, all: &[SpentWrite]) -> Result<Total> {
    let mut by_run: BTreeMap<Uuid, (Total, Amount)> = BTreeMap::new();
    for SpentWrite { run, spent } in all {
        let counted =
            query("INSERT INTO spent_steps (run_id, step_id) VALUES ($1, $2) ON CONFLICT DO NOTHING")
                .bind(run)
                .bind(spent.step.as_uuid())
                .execute(&mut *connection)
                .await
                .map_err(db)?;
        // A new owner reported it again.
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
        for budget in covering_budgets(connection, &[*run]).await? {
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
