//! The PostgreSQL dialect: row locks, and multi-row statements with `unnest`.

use std::{str::FromStr, time::Duration};

use remuda_domain::error::Result;
use sqlx::{
    ConnectOptions as _, Connection as _, PgConnection, PgPool, Transaction,
    pool::PoolConnection,
    postgres::{PgConnectOptions, PgPoolOptions},
    query, query_as, raw_sql,
};
use uuid::Uuid;

use crate::{
    error::db,
    row_writes::{MessageWrite, StepWrite},
    rows::{HeadRow, HeadRunRow, KeyedRun, RunRow, StepRow, WorkerLeaseRow},
    time::DbTime,
};

pub(crate) type Db = sqlx::Postgres;
pub(crate) type Connection = PgConnection;
pub(crate) type DbPool = PgPool;
/// Writers share the pool: row locks order them.
pub(crate) type Writer = PgPool;
pub(crate) type WriteTransaction = Transaction<'static, Db>;

/// The database's clock. Leases are compared with it alone, so the workers' clocks do not matter.
pub(crate) const NOW: &str = "clock_timestamp()";
/// The time `$2` microseconds from now.
pub(crate) const IN_MICROS_2: &str = "clock_timestamp() + $2 * interval '1 microsecond'";
/// Microseconds until `lease_until`.
pub(crate) const LEASE_LEFT: &str = "(EXTRACT(EPOCH FROM lease_until - clock_timestamp()) * 1000000)::bigint";
/// Microseconds until `expires_at`.
pub(crate) const EXPIRY_LEFT: &str = "(EXTRACT(EPOCH FROM expires_at - clock_timestamp()) * 1000000)::bigint";
/// Microseconds until `next_attempt_at`.
pub(crate) const ATTEMPT_LEFT: &str =
    "(EXTRACT(EPOCH FROM next_attempt_at - clock_timestamp()) * 1000000)::bigint";
pub(crate) const A_MINUTE_AGO: &str = "clock_timestamp() - interval '1 minute'";
/// The earliest time since when a run `r` may have waited for a worker: parked time comes after the first start.
pub(crate) const RUNNABLE_SINCE: &str =
    "coalesce(r.started_at + r.paused_ms * interval '1 millisecond', r.created_at)";
/// Condition after a column: its value is one of the ids in `$1`, see [`id_list`].
pub(crate) const AMONG_1: &str = "= ANY($1)";
/// The runs `r` that workers `w` execute: each worker names its runs with its heartbeats. `OFFSET 0` keeps the planner
/// from joining in the opposite direction, from all runs of a tenant to the few workers.
pub(crate) const RUNNING_RUNS: &str = "workers w CROSS JOIN LATERAL json_array_elements_text(w.running::json) j (id) \
    CROSS JOIN LATERAL (SELECT id, tenant_id, session_id, state, started_at FROM runs WHERE id = j.id::uuid OFFSET 0) r";
/// The time `$3` microseconds ago.
pub(crate) const BEFORE_MICROS_3: &str = "clock_timestamp() - $3 * interval '1 microsecond'";
/// The last heartbeat of worker `w` names the current run of session `s`.
pub(crate) const NAMES_CURRENT_RUN: &str = "position(replace(s.current_run::text, '-', '') IN w.running) > 0";
/// The id of the counter row, or no row while another process writes it, so that no process waits.
pub(crate) const UNLOCKED_COUNTER_ROW: &str = "(SELECT id FROM tally WHERE id = 1 FOR UPDATE SKIP LOCKED)";
/// Suffix of a select of rows to delete: rows that another process is deleting are skipped.
pub(crate) const SKIP_LOCKED: &str = "FOR UPDATE SKIP LOCKED";
pub(crate) const MAX_BATCH: usize = 512;

/// Session settings. The timeouts keep a stuck statement or an abandoned transaction from holding row locks for ever.
///
/// Every statement here is a handful of index lookups, and sqlx prepares it once per connection. PostgreSQL would plan
/// it as a scan while the tables are small and keep that plan until the next ANALYZE, however fast they grow. The
/// `enable_*` settings prevent that, and also keep it from collecting and sorting all queued rows to find the first,
/// which an index provides in order. A statement that can only be a scan stays one, but at a cost estimate that would
/// trigger the JIT, so that is off. Each statement has one good plan, so plans are generic: PostgreSQL would otherwise
/// replan each time, because a batch shorter than estimated looks cheaper.
const SETTINGS: &str = "SET statement_timeout = '30s'; SET idle_in_transaction_session_timeout = '30s'; \
    SET lock_timeout = '15s'; SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; \
    SET enable_bitmapscan = off; SET jit = off; SET plan_cache_mode = force_generic_plan";

/// A connection idle for longer may be dead and is tested before use.
const MAX_UNTESTED_IDLE: Duration = Duration::from_secs(2);

/// The pool for writers, if it is separate from the readers' pool.
pub(crate) fn writer_pool(_: &Writer) -> Option<&DbPool> {
    None
}

/// Opens the pool. Readers and writers share it.
pub(crate) async fn open(url: &str, max_connections: u32) -> Result<(DbPool, DbPool), sqlx::Error> {
    let options = PgConnectOptions::from_str(url)?;
    // A pool would retry by itself and then report only a timeout.
    options.connect().await?.close().await?;
    let pool = PgPoolOptions::new()
        .max_connections(max_connections)
        .acquire_timeout(Duration::from_secs(10))
        // A test before every use would cost a round trip each time.
        .test_before_acquire(false)
        // sqlx 0.9.0 can return a connection inside an open transaction when `begin` is dropped midway.
        .before_acquire(|connection, metadata| {
            Box::pin(async move {
                if metadata.idle_for > MAX_UNTESTED_IDLE {
                    connection.ping().await?;
                }
                if connection.is_in_transaction() {
                    query("ROLLBACK").execute(&mut *connection).await?;
                }
                Ok(true)
            })
        })
        .after_connect(|connection, _| {
            Box::pin(async move {
                raw_sql(SETTINGS).execute(connection).await?;
                Ok(())
            })
        })
        .connect_with(options)
        .await?;
    Ok((pool.clone(), pool))
}

/// Acquires a connection for writing.
pub(crate) async fn write_connection(writer: &Writer) -> Result<PoolConnection<Db>> {
    writer.acquire().await.map_err(db)
}

/// Fails if the database cannot grow: extends a table that is gone afterwards.
pub(crate) async fn find_room(writer: &Writer) -> Result<()> {
    let mut tx = begin(writer).await?;
    let grow = "CREATE TEMP TABLE remuda_room ON COMMIT DROP AS \
        SELECT repeat('x', 1000) FROM generate_series(1, 250)";
    query(grow).execute(&mut *tx).await.map_err(db)?;
    tx.commit().await.map_err(db)
}

/// For migrations: they may take long and wait for each other.
pub(crate) async fn lift_time_limits(connection: &mut Connection) -> Result<()> {
    for limit in ["SET statement_timeout = 0", "SET lock_timeout = 0"] {
        query(limit).execute(&mut *connection).await.map_err(db)?;
    }
    Ok(())
}

pub(crate) async fn begin(writer: &Writer) -> Result<WriteTransaction> {
    writer.begin().await.map_err(db)
}

/// Begins a read-only transaction on one snapshot.
pub(crate) async fn snapshot(pool: &DbPool) -> Result<Transaction<'static, Db>> {
    pool.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await.map_err(db)
}

/// Ids as one parameter, for [`AMONG_1`].
pub(crate) fn id_list(ids: &[Uuid]) -> Result<Vec<Uuid>> {
    Ok(ids.to_vec())
}

/// Locks budgets in id order. Sessions must be locked before budgets, never after.
pub(crate) async fn lock_budgets(connection: &mut Connection, ids: &[Uuid]) -> Result<()> {
    query("SELECT 1 FROM budgets WHERE id = ANY($1) ORDER BY id FOR UPDATE")
        .bind(ids)
        .fetch_all(connection)
        .await
        .map_err(db)?;
    Ok(())
}

/// Locks sessions in id order, so that transactions cannot deadlock.
pub(crate) async fn lock_heads(connection: &mut Connection, ids: &[Uuid]) -> Result<Vec<HeadRow>> {
    // Read the clock after the locks are held: otherwise a change could be dated before the one it waited for.
    query_as(concat!(
        "WITH locked AS MATERIALIZED (SELECT ",
        head_columns!(),
        " FROM sessions s WHERE s.id = ANY($1) ORDER BY s.id FOR UPDATE) SELECT locked.*, clock_timestamp() AS now FROM locked"
    ))
    .bind(ids)
    .fetch_all(connection)
    .await
    .map_err(db)
}

/// Finds stored idempotency keys.
pub(crate) async fn find_keys(connection: &mut Connection, keys: &[(Uuid, &str)]) -> Result<Vec<KeyedRun>> {
    query_as(
        "SELECT k.tenant_id, k.key, k.request_hash, k.run_id FROM unnest($1::uuid[], $2::text[]) AS n (tenant_id, key) \
         JOIN idempotency_keys k ON k.tenant_id = n.tenant_id AND k.key = n.key",
    )
    .bind(keys.iter().map(|(tenant, _)| *tenant).collect::<Vec<_>>())
    .bind(keys.iter().map(|(_, key)| *key).collect::<Vec<_>>())
    .fetch_all(connection)
    .await
    .map_err(db)
}

/// Inserts idempotency keys and returns how many were new. Waits for a concurrent transaction that inserts the same
/// key: the caller sorts the keys, so that transactions cannot deadlock.
pub(crate) async fn insert_keys(
    connection: &mut Connection,
    keys: &[KeyedRun],
    expires: DbTime,
) -> Result<u64> {
    let done = query(
        "INSERT INTO idempotency_keys (tenant_id, key, request_hash, run_id, expires_at) \
         SELECT n.*, $5 FROM unnest($1::uuid[], $2::text[], $3::bytea[], $4::uuid[]) AS n ON CONFLICT DO NOTHING",
    )
    .bind(keys.iter().map(|it| it.tenant_id).collect::<Vec<_>>())
    .bind(keys.iter().map(|it| it.key.as_str()).collect::<Vec<_>>())
    .bind(keys.iter().map(|it| it.request_hash.as_slice()).collect::<Vec<_>>())
    .bind(keys.iter().map(|it| it.run_id).collect::<Vec<_>>())
    .bind(expires)
    .execute(connection)
    .await
    .map_err(db)?;
    Ok(done.rows_affected())
}

/// Loads the first unfinished run of each session.
/// Reads those of these runs, each with a tenant, that belong to their tenant.
pub(crate) async fn runs_of_tenants(
    connection: &mut Connection,
    keys: &[(Uuid, Uuid)],
) -> Result<Vec<RunRow>> {
    let (runs, tenants): (Vec<Uuid>, Vec<Uuid>) = keys.iter().copied().unzip();
    query_as(concat!(
        "SELECT ",
        run_columns!(),
        " FROM unnest($1, $2) k (id, tenant_id) JOIN runs r ON r.id = k.id AND r.tenant_id = k.tenant_id \
         JOIN sessions s ON s.id = r.session_id"
    ))
    .bind(runs)
    .bind(tenants)
    .fetch_all(connection)
    .await
    .map_err(db)
}

pub(crate) async fn head_runs(connection: &mut Connection, sessions: &[Uuid]) -> Result<Vec<HeadRunRow>> {
    query_as(concat!(
        "SELECT ",
        run_columns!(),
        ", ",
        settings_columns!(),
        " FROM unnest($1::uuid[]) AS wanted (id) JOIN sessions s ON s.id = wanted.id \
         JOIN workspaces w ON w.id = s.workspace_id CROSS JOIN LATERAL (SELECT * FROM runs \
         WHERE session_id = wanted.id AND state < 10 ORDER BY seq LIMIT 1) r"
    ))
    .bind(sessions)
    .fetch_all(connection)
    .await
    .map_err(db)
}

/// Loads the first unfinished run of each session other than the current one.
pub(crate) async fn next_runs(connection: &mut Connection, sessions: &[Uuid]) -> Result<Vec<HeadRunRow>> {
    query_as(concat!(
        "SELECT ",
        run_columns!(),
        ", ",
        settings_columns!(),
        " FROM unnest($1::uuid[]) AS wanted (id) JOIN sessions s ON s.id = wanted.id \
         JOIN workspaces w ON w.id = s.workspace_id CROSS JOIN LATERAL (SELECT * FROM runs \
         WHERE session_id = wanted.id AND state < 10 AND id IS DISTINCT FROM s.current_run ORDER BY seq LIMIT 1) r"
    ))
    .bind(sessions)
    .fetch_all(connection)
    .await
    .map_err(db)
}

pub(crate) async fn save_steps(connection: &mut Connection, steps: &[StepWrite]) -> Result<()> {
    query(
        "INSERT INTO steps (run_id, id, position, step) \
         SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::integer[], $4::text[]) \
         ON CONFLICT (run_id, id) DO UPDATE SET step = excluded.step",
    )
    .bind(steps.iter().map(|step| step.run).collect::<Vec<_>>())
    .bind(steps.iter().map(|step| step.id).collect::<Vec<_>>())
    .bind(steps.iter().map(|step| step.position).collect::<Vec<_>>())
    .bind(steps.iter().map(|step| step.json.as_str()).collect::<Vec<_>>())
    .execute(connection)
    .await
    .map_err(db)?;
    Ok(())
}

pub(crate) async fn load_steps(connection: &mut Connection, runs: &[Uuid]) -> Result<Vec<StepRow>> {
    query_as("SELECT run_id, step FROM steps WHERE run_id = ANY($1) ORDER BY run_id, position")
        .bind(runs)
        .fetch_all(connection)
        .await
        .map_err(db)
}

pub(crate) async fn insert_messages(connection: &mut Connection, messages: &[MessageWrite]) -> Result<()> {
    query(
        "INSERT INTO messages (session_id, id, run_id, role, parts, created_at, agent, position, ordinal) \
         SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::timestamptz[], $7::text[], \
         $8::bigint[], $9::integer[])",
    )
    .bind(messages.iter().map(|message| message.session).collect::<Vec<_>>())
    .bind(messages.iter().map(|message| message.id).collect::<Vec<_>>())
    .bind(messages.iter().map(|message| message.run).collect::<Vec<_>>())
    .bind(messages.iter().map(|message| message.role).collect::<Vec<_>>())
    .bind(messages.iter().map(|message| message.parts.as_str()).collect::<Vec<_>>())
    .bind(messages.iter().map(|message| message.created_at.0).collect::<Vec<_>>())
    .bind(messages.iter().map(|message| message.agent.as_deref()).collect::<Vec<_>>())
    .bind(messages.iter().map(|message| message.position).collect::<Vec<_>>())
    .bind(messages.iter().map(|message| message.ordinal).collect::<Vec<_>>())
    .execute(connection)
    .await
    .map_err(db)?;
    Ok(())
}

pub(crate) async fn leases(connection: &mut Connection, workers: &[Uuid]) -> Result<Vec<WorkerLeaseRow>> {
    let sql = format!(
        "SELECT id, state, pool, {LEASE_LEFT} AS left_us, clock_timestamp() AS now FROM workers WHERE id = ANY($1)"
    );
    query_as(sqlx::AssertSqlSafe(sql)).bind(workers).fetch_all(connection).await.map_err(db)
}

/// Which of these unfinished runs have a cancellation request. `+ 0` as in [`finish_runs`].
pub(crate) async fn cancel_requested(connection: &mut Connection, runs: &[Uuid]) -> Result<Vec<Uuid>> {
    sqlx::query_scalar("SELECT id FROM runs WHERE id = ANY($1) AND cancel_at IS NOT NULL AND state + 0 < 10")
        .bind(runs)
        .fetch_all(connection)
        .await
        .map_err(db)
}
