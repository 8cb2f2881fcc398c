//! Looking at the database past the store: what is open, and how statements are executed.

use anyhow::{Result, ensure};
use remuda_store::connect;
use remuda_testkit::wait_for;
use sqlx::{Connection as _, PgConnection};

use crate::lab::{LONG_LEASE, Lab, PATIENCE, completed, progress, step};

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

/// On a database that nobody has analysed: there plans go wrong first, and stay wrong while the tables grow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hot_statements_scan_no_table() -> Result<()> {
    const ROUNDS: i64 = 40;
    let lab = Lab::postgres().await?;
    let store = connect(&lab.options()).await?;
    let (session, worker) = (lab.session().await?, lab.worker(LONG_LEASE).await?);
    for round in 0..ROUNDS {
        store.submit(lab.keyed_run(session, &round.to_string(), 1)).await?;
        store.submit(lab.keyed_run(session, &round.to_string(), 1)).await?;
        store.runnable_sessions(None, 10).await?;
        store.is_runnable(lab.tenant, session).await?;
        let remuda_store::Claim::Granted(grant) = store.claim(lab.tenant, session, worker).await? else {
            anyhow::bail!("not granted");
        };
        store.commit(progress(&grant, vec![step(&grant, 0)])).await?;
        store.request_cancel(lab.tenant, grant.run.id, "x").await?;
        let running = vec![grant.run.id];
        store.renew_lease(&remuda_store::Heartbeat { worker, lease: LONG_LEASE, running }).await?;
        store.commit(completed(&grant)).await?;
        store.get_run(lab.tenant, grant.run.id).await?;
        store.read_events(lab.tenant, session, 0, 10).await?;
    }
    // A backend reports what it did when it ends.
    drop(store);
    wait_for("the statistics", PATIENCE, || async {
        let written = "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'runs'";
        let mut connection = PgConnection::connect(&lab.options().url).await.ok()?;
        let updates: i64 = sqlx::query_scalar(written).fetch_one(&mut connection).await.ok()?;
        (updates >= ROUNDS).then_some(())
    })
    .await;
    let mut connection = PgConnection::connect(&lab.options().url).await?;
    let scans: Vec<(String, i64)> = sqlx::query_as(
        "SELECT relname::text, seq_scan FROM pg_stat_user_tables \
         WHERE relname IN ('sessions', 'runs', 'idempotency_keys', 'steps', 'events') AND seq_scan >= $1",
    )
    .bind(ROUNDS / 2)
    .fetch_all(&mut connection)
    .await?;
    ensure!(scans.is_empty(), "scanned: {scans:?}");
    Ok(())
}
