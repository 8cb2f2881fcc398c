//! SQLite: batches of runs inserted by one statement and ended by another.

use std::time::Duration;

use sqlx::{
    ConnectOptions as _, Connection as _, SqliteConnection, query,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous},
};

use super::rows::{INPUT, RESULT, ids, repeat};

pub(super) async fn measure(time: Duration) -> anyhow::Result<f64> {
    let directory = tempfile::Builder::new().prefix("remuda-limits-").tempdir()?;
    let mut connection = SqliteConnectOptions::new()
        .filename(directory.path().join("limits.db"))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .connect()
        .await?;
    query("CREATE TABLE runs (id blob PRIMARY KEY, state integer NOT NULL, input text NOT NULL, result text) WITHOUT ROWID")
        .execute(&mut connection)
        .await?;
    let rate = repeat(time, async || write(&mut connection).await).await?;
    connection.close().await?;
    Ok(rate)
}

async fn write(connection: &mut SqliteConnection) -> anyhow::Result<usize> {
    let ids = ids();
    let ids_json = serde_json::to_string(&ids.iter().map(|id| id.simple().to_string()).collect::<Vec<_>>())?;
    query("INSERT INTO runs (id, state, input) SELECT unhex(value), 0, $2 FROM json_each($1)")
        .bind(&ids_json)
        .bind(INPUT)
        .execute(&mut *connection)
        .await?;
    query("UPDATE runs SET state = 10, result = $2 WHERE id IN (SELECT unhex(value) FROM json_each($1))")
        .bind(&ids_json)
        .bind(RESULT)
        .execute(&mut *connection)
        .await?;
    Ok(2 * ids.len())
}
