//! PostgreSQL: batches of runs inserted by one statement and ended by another.

use std::time::Duration;

use futures::future::try_join_all;
use remuda_testkit::{PostgresServer, preallocate_wal};
use sqlx::{Connection as _, PgConnection, query};

use super::rows::{INPUT, RESULT, ids, repeat};

/// Two, so that one executes statements while the commit of the other is flushed.
const CONNECTIONS: usize = 2;

pub(super) async fn measure(time: Duration) -> anyhow::Result<f64> {
    let directory = tempfile::Builder::new().prefix("remuda-limits-").tempdir()?;
    let path = directory.path().to_owned();
    let server = tokio::task::spawn_blocking(move || {
        let server = PostgresServer::start(&path)?;
        preallocate_wal(&server.url())?;
        anyhow::Ok(server)
    });
    let server = server.await??;
    let mut connection = PgConnection::connect(&server.url()).await?;
    query(
        "CREATE TABLE runs (id uuid PRIMARY KEY, state smallint NOT NULL, input text NOT NULL, result text)",
    )
    .execute(&mut connection)
    .await?;
    let rates = (0..CONNECTIONS).map(|_| async {
        let mut connection = PgConnection::connect(&server.url()).await?;
        repeat(time, async || write(&mut connection).await).await
    });
    let rates = try_join_all(rates).await?;
    connection.close().await?;
    Ok(rates.iter().sum())
}

async fn write(connection: &mut PgConnection) -> anyhow::Result<usize> {
    let ids = ids();
    query("INSERT INTO runs (id, state, input) SELECT id, 0, input FROM unnest($1::uuid[], $2::text[]) n (id, input)")
        .bind(&ids)
        .bind(vec![INPUT; ids.len()])
        .execute(&mut *connection)
        .await?;
    query(
        "UPDATE runs r SET state = 10, result = n.result FROM unnest($1::uuid[], $2::text[]) n (id, result) \
         WHERE r.id = n.id",
    )
    .bind(&ids)
    .bind(vec![RESULT; ids.len()])
    .execute(&mut *connection)
    .await?;
    Ok(2 * ids.len())
}
