//! Spending totals of runs, sessions and their trees.

use remuda_domain::{
    RunId, SessionId, TenantId,
    budget::{Amount, Total},
    error::Result,
};
use sqlx::{AssertSqlSafe, query_as, query_scalar};
use uuid::Uuid;

use super::{dialect::Connection, runs, submit::session_not_found};
use crate::{error::db, rows::TotalRow};

/// CTE `tree (id)`: the run `$1` of tenant `$2` and its descendants.
pub(super) const RUNS_BELOW: &str = "WITH RECURSIVE tree (id) AS (SELECT id FROM runs WHERE id = $1 AND tenant_id = $2 \
    UNION ALL SELECT r.id FROM tree t JOIN runs r ON r.parent_run = t.id)";
/// CTE `tree (id)`: the session `$1` of tenant `$2` and its descendants.
pub(super) const SESSIONS_BELOW: &str = "WITH RECURSIVE tree (id) AS (SELECT id FROM sessions WHERE id = $1 AND tenant_id = $2 \
    UNION ALL SELECT s.id FROM tree t JOIN sessions s ON s.parent_id = t.id)";

/// Select list of sums over `runs r`.
fn sums() -> String {
    let columns = [
        "model_calls",
        "input_tokens",
        "output_tokens",
        "cached_tokens",
        "cache_write_tokens",
        "reasoning_tokens",
        "cost_micros",
    ];
    columns.map(|column| format!("CAST(sum(r.{column}) AS bigint) AS {column}")).join(", ")
}

async fn total(connection: &mut Connection, sql: String, id: Uuid, tenant: TenantId) -> Result<Total> {
    let row: TotalRow = query_as(AssertSqlSafe(sql))
        .bind(id)
        .bind(tenant.as_uuid())
        .fetch_one(connection)
        .await
        .map_err(db)?;
    Ok(row.into_total())
}

pub(super) async fn run_tree(connection: &mut Connection, tenant: TenantId, run: RunId) -> Result<Total> {
    let sql = format!("{RUNS_BELOW} SELECT {} FROM tree t JOIN runs r ON r.id = t.id", sums());
    total(connection, sql, run.as_uuid(), tenant).await
}

pub(super) async fn session_tree(
    connection: &mut Connection,
    tenant: TenantId,
    session: SessionId,
) -> Result<Total> {
    let sql = format!("{SESSIONS_BELOW} SELECT {} FROM tree t JOIN runs r ON r.session_id = t.id", sums());
    total(connection, sql, session.as_uuid(), tenant).await
}

/// The part of a total that counts towards a budget.
pub(super) fn counted(total: &Total) -> Amount {
    let tokens = total.usage.input_tokens.saturating_add(total.usage.output_tokens);
    Amount { tokens, micros: total.micros }
}

/// Totals of a run by itself, and with its descendants.
pub(super) async fn of_run(
    connection: &mut Connection,
    tenant: TenantId,
    run: RunId,
) -> Result<(Total, Total)> {
    runs::check_exists(connection, tenant, run).await?;
    let sql = format!("SELECT {} FROM runs r WHERE r.id = $1 AND r.tenant_id = $2", sums());
    let own = total(connection, sql, run.as_uuid(), tenant).await?;
    Ok((own, run_tree(connection, tenant, run).await?))
}

/// Totals of a session by itself, and with its descendants.
pub(super) async fn of_session(
    connection: &mut Connection,
    tenant: TenantId,
    session: SessionId,
) -> Result<(Total, Total)> {
    let found: Option<i64> = query_scalar("SELECT last_seq FROM sessions WHERE id = $1 AND tenant_id = $2")
        .bind(session.as_uuid())
        .bind(tenant.as_uuid())
        .fetch_optional(&mut *connection)
        .await
        .map_err(db)?;
    found.ok_or_else(session_not_found)?;
    let sql = format!("SELECT {} FROM runs r WHERE r.session_id = $1 AND r.tenant_id = $2", sums());
    let own = total(connection, sql, session.as_uuid(), tenant).await?;
    Ok((own, session_tree(connection, tenant, session).await?))
}
