//! A direct connection to the database of a deployment: PostgreSQL or SQLite.

use std::{path::Path, time::Duration};

use anyhow::Context as _;
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection, SqliteConnection, query_as,
    query_scalar, raw_sql, sqlite::SqliteConnectOptions,
};

use super::statements::Dialect;

pub(crate) enum Database {
    Postgres(PgConnection),
    Sqlite(SqliteConnection),
}

impl Database {
    pub(crate) async fn postgres(url: &str) -> anyhow::Result<Self> {
        let mut connection = PgConnection::connect(url).await?;
        // The final checkpoint flushes the seeded data to disk.
        raw_sql("SET synchronous_commit = off; SET maintenance_work_mem = '256MB'; SET work_mem = '256MB'")
            .execute(&mut connection)
            .await?;
        Ok(Self::Postgres(connection))
    }

    pub(crate) async fn sqlite(file: &Path) -> anyhow::Result<Self> {
        let connection = SqliteConnectOptions::new()
            .filename(file)
            .busy_timeout(Duration::from_secs(30))
            // Large enough for indexes that are filled in random order.
            .pragma("cache_size", "-524288")
            .connect()
            .await?;
        Ok(Self::Sqlite(connection))
    }

    pub(super) fn dialect(&self) -> Dialect {
        match self {
            Self::Postgres(_) => Dialect::Postgres,
            Self::Sqlite(_) => Dialect::Sqlite,
        }
    }

    pub(super) async fn execute(&mut self, sql: String) -> anyhow::Result<()> {
        let sql = AssertSqlSafe(sql);
        match self {
            Self::Postgres(connection) => raw_sql(sql).execute(connection).await.map(drop)?,
            Self::Sqlite(connection) => raw_sql(sql).execute(connection).await.map(drop)?,
        }
        Ok(())
    }

    /// Names of a table's columns.
    pub(super) async fn columns(&mut self, table: &str) -> anyhow::Result<Vec<String>> {
        Ok(match self {
            Self::Postgres(connection) => {
                let sql = "SELECT column_name::text FROM information_schema.columns WHERE table_name = $1 AND \
                           table_schema = current_schema() ORDER BY ordinal_position";
                query_scalar(sql).bind(table).fetch_all(connection).await?
            }
            Self::Sqlite(connection) => {
                let sql = "SELECT name FROM pragma_table_info($1)";
                query_scalar(sql).bind(table).fetch_all(connection).await?
            }
        })
    }

    pub(super) async fn text(&mut self, sql: &str) -> anyhow::Result<String> {
        let found: Option<String> = match self {
            Self::Postgres(connection) => {
                query_scalar(AssertSqlSafe(sql.to_owned())).fetch_optional(connection).await?
            }
            Self::Sqlite(connection) => {
                query_scalar(AssertSqlSafe(sql.to_owned())).fetch_optional(connection).await?
            }
        };
        found.with_context(|| format!("no row found by {sql}"))
    }

    /// Queries one number.
    pub(crate) async fn number(&mut self, sql: &str) -> anyhow::Result<i64> {
        let sql = AssertSqlSafe(sql.to_owned());
        Ok(match self {
            Self::Postgres(connection) => query_scalar(sql).fetch_one(connection).await?,
            Self::Sqlite(connection) => query_scalar(sql).fetch_one(connection).await?,
        })
    }

    /// Queries rows of two numbers.
    pub(crate) async fn pairs(&mut self, sql: &str) -> anyhow::Result<Vec<(i64, i64)>> {
        let sql = AssertSqlSafe(sql.to_owned());
        Ok(match self {
            Self::Postgres(connection) => query_as(sql).fetch_all(connection).await?,
            Self::Sqlite(connection) => query_as(sql).fetch_all(connection).await?,
        })
    }

    /// An id as an SQL literal.
    pub(crate) fn literal(&self, id: uuid::Uuid) -> String {
        self.dialect().literal(id)
    }

    /// An SQL expression for a timestamp column as microseconds since 1970.
    pub(crate) fn micros(&self, column: &str) -> String {
        match self {
            Self::Postgres(_) => format!("(extract(epoch FROM {column}) * 1000000)::bigint"),
            Self::Sqlite(_) => column.to_owned(),
        }
    }

    /// Updates statistics and flushes to disk, so that the database is in the state of one that grew slowly.
    pub(super) async fn checkpoint(&mut self) -> anyhow::Result<()> {
        match self {
            Self::Postgres(connection) => {
                for sql in [
                    "VACUUM (ANALYZE) sessions",
                    "VACUUM (ANALYZE) runs",
                    "VACUUM (ANALYZE) events",
                    "CHECKPOINT",
                ] {
                    raw_sql(sql).execute(&mut *connection).await?;
                }
            }
            Self::Sqlite(connection) => {
                raw_sql("PRAGMA wal_checkpoint(TRUNCATE)").execute(connection).await?;
            }
        }
        Ok(())
    }

    pub(crate) async fn close(self) -> anyhow::Result<()> {
        match self {
            Self::Postgres(connection) => connection.close().await?,
            Self::Sqlite(connection) => connection.close().await?,
        }
        Ok(())
    }
}
