//! Looking at the database past the store: what is open, and how statements are executed.

use anyhow::Result;
use sqlx::Connection as _;

use crate::lab::Lab;

/// Executes one statement behind the store's back.
pub(crate) async fn execute(lab: &Lab, sql: &'static str) -> Result<()> {
    let url = lab.options().url;
    if lab.is_postgres() {
        sqlx::query(sql).execute(&mut sqlx::PgConnection::connect(&url).await?).await?;
    } else {
        sqlx::query(sql).execute(&mut sqlx::SqliteConnection::connect(&url).await?).await?;
    }
    Ok(())
}

/// Connections that sit inside a transaction.
pub(crate) async fn open_transactions(lab: &Lab) -> Result<i64> {
    let url = lab.options().url;
    if lab.is_postgres() {
        let mut connection = sqlx::PgConnection::connect(&url).await?;
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                   AND state LIKE 'idle in transaction%'";
        return Ok(sqlx::query_scalar(sql).fetch_one(&mut connection).await?);
    }
    // The write lock is free when nobody is inside a transaction.
    let mut connection = sqlx::SqliteConnection::connect(&url).await?;
    sqlx::query("BEGIN IMMEDIATE").execute(&mut connection).await?;
    sqlx::query("ROLLBACK").execute(&mut connection).await?;
    Ok(0)
}
