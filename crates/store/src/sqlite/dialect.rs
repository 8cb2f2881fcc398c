//! The SQLite dialect: one writer at a time, and multi-row statements with `json_each`.
//!
//! A statement costs a round trip to the connection's thread, which is more expensive than writing a row. The
//! statements of the hot path therefore take their rows as one JSON array. The others are rare and write one row at a
//! time.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::Path,
    str::FromStr,
    time::Duration,
};

use remuda_domain::{Error, error::Result};
use sqlx::{
    Connection as _, SqliteConnection, SqlitePool, Transaction, query, query_as, query_scalar,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};
use uuid::Uuid;

use crate::{
    error::{db, json, storage_corrupt, storage_full},
    row_writes::{MessageWrite, StepWrite},
    rows::{HeadRow, HeadRunRow, KeyedRun, RunRow, StepRow, WorkerLeaseRow},
    time::DbTime,
};

pub(crate) use super::writer::{WriteTransaction, Writer, begin, write_connection, writer_pool};

pub(crate) type Db = sqlx::Sqlite;
pub(crate) type Connection = SqliteConnection;
pub(crate) type DbPool = SqlitePool;

pub(crate) const NOW: &str = "CAST(unixepoch('subsec') * 1000000 AS INTEGER)";
/// The time `$2` microseconds from now.
pub(crate) const IN_MICROS_2: &str = "CAST(unixepoch('subsec') * 1000000 AS INTEGER) + $2";
/// Microseconds until `lease_until`.
pub(crate) const LEASE_LEFT: &str = "lease_until - CAST(unixepoch('subsec') * 1000000 AS INTEGER)";
/// Microseconds until `expires_at`.
pub(crate) const EXPIRY_LEFT: &str = "expires_at - CAST(unixepoch('subsec') * 1000000 AS INTEGER)";
/// Microseconds until `next_attempt_at`.
pub(crate) const ATTEMPT_LEFT: &str = "next_attempt_at - CAST(unixepoch('subsec') * 1000000 AS INTEGER)";
pub(crate) const A_MINUTE_AGO: &str = "CAST(unixepoch('subsec') * 1000000 AS INTEGER) - 60000000";
/// The earliest time since when a run `r` may have waited for a worker: parked time comes after the first start.
pub(crate) const RUNNABLE_SINCE: &str = "coalesce(r.started_at + r.paused_ms * 1000, r.created_at)";
/// Condition after a column: its value is one of the ids in `$1`, see [`id_list`].
pub(crate) const AMONG_1: &str = "IN (SELECT unhex(value) FROM json_each($1))";
/// The runs `r` that workers `w` execute: each worker names its runs with its heartbeats.
pub(crate) const RUNNING_RUNS: &str =
    "workers w CROSS JOIN json_each(w.running) j CROSS JOIN runs r ON r.id = unhex(j.value)";
/// The time `$3` microseconds ago.
pub(crate) const BEFORE_MICROS_3: &str = "CAST(unixepoch('subsec') * 1000000 AS INTEGER) - $3";
/// The last heartbeat of worker `w` names the current run of session `s`.
pub(crate) const NAMES_CURRENT_RUN: &str = "instr(w.running, lower(hex(s.current_run))) > 0";
/// The id of the counter row: with one writer at a time it needs no lock.
pub(crate) const UNLOCKED_COUNTER_ROW: &str = "1";
/// Suffix of a select of rows to delete: with one writer at a time it needs no lock.
pub(crate) const SKIP_LOCKED: &str = "";
pub(crate) const MAX_BATCH: usize = 1024;
/// Pragmas of every connection.
pub(super) const PRAGMAS: [(&str, &str); 3] = [
    // WAL pages before a checkpoint. More would make a checkpoint noticeably long.
    ("wal_autocheckpoint", "4000"),
    // Keep statement journals in memory, not in a file.
    ("temp_store", "memory"),
    ("cache_size", "-65536"),
];
/// Readers are many and share the operating system's page cache, so their own caches are small.
const READER_CACHE: &str = "-8192";
/// How long a connection waits for another writer.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest database that is checked for damage at every start.
const MAX_CHECKED: u64 = 64 << 20;
/// The disk counts as full while it has no room for this many bytes.
const ROOM: usize = 256 << 10;

/// Opens a pool with one writer and a pool of readers. SQLite allows one writer, and queueing for it is faster than
/// retrying.
pub(crate) async fn open(url: &str, max_connections: u32) -> Result<(DbPool, DbPool), sqlx::Error> {
    let options = SqliteConnectOptions::from_str(url)?
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        // FULL: a commit is on disk before it is acknowledged, as on PostgreSQL.
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(BUSY_TIMEOUT)
        .statement_cache_capacity(256);
    let options = PRAGMAS.into_iter().fold(options, |options, (name, value)| options.pragma(name, value));
    // A local file needs no connection test before each use.
    let pool = SqlitePoolOptions::new().test_before_acquire(false);
    // When the disk is full, SQLite ends the transaction by itself, but the driver still counts it as open, and begins
    // no other one on this connection. Dropped transactions were rolled back when the connection was returned.
    let writer = pool
        .clone()
        .before_acquire(|connection, _| Box::pin(async move { Ok(!connection.is_in_transaction()) }))
        .max_connections(1)
        .connect_with(options.clone())
        .await?;
    let readers = pool
        .max_connections(max_connections)
        .connect_with(
            options
                .pragma("query_only", "on")
                .pragma("cache_size", READER_CACHE)
                .optimize_on_close(false, None),
        )
        .await?;
    Ok((writer, readers))
}

/// Fails if the database is damaged. Checks small databases only: that takes no longer than some tens of milliseconds.
pub(crate) async fn check_integrity(pool: &DbPool) -> Result<()> {
    let size = fs::metadata(pool.connect_options().get_filename()).map_or(0, |metadata| metadata.len());
    if size > MAX_CHECKED {
        return Ok(());
    }
    let problems: String = query_scalar("PRAGMA quick_check(1)").fetch_one(pool).await.map_err(db)?;
    if problems == "ok" { Ok(()) } else { Err(storage_corrupt(problems)) }
}

/// Fails if there is no room for small transactions: fills a file beside the database, and writes to the database.
pub(crate) async fn find_room(writer: &Writer) -> Result<()> {
    if let Some(pool) = writer_pool(writer) {
        let path = pool.connect_options().get_filename().with_extension("room");
        let filled = tokio::task::spawn_blocking(move || fill(&path)).await;
        match filled.map_err(|error| Error::internal("the test of the disk panicked").with_source(error))? {
            Err(error) if is_disk_full(&error) => return Err(storage_full(error)),
            filled => {
                filled.map_err(|error| Error::unavailable("the disk cannot be written").with_source(error))?
            }
        }
    }
    let mut tx = begin(writer).await?;
    query("UPDATE tally SET id = id WHERE id = 1").execute(&mut *tx).await.map_err(db)?;
    tx.commit().await.map_err(db)
}

/// Writes a file and removes it. One that a killed process left behind is overwritten.
fn fill(path: &Path) -> io::Result<()> {
    let filled = File::create(path).and_then(|mut file| {
        file.write_all(&[0; ROOM])?;
        file.sync_all()
    });
    fs::remove_file(path)?;
    filled
}

fn is_disk_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Begins a read-only transaction on one snapshot.
pub(crate) async fn snapshot(pool: &DbPool) -> Result<Transaction<'static, Db>> {
    pool.begin().await.map_err(db)
}

/// An id as a JSON string; `unhex` in SQL converts it back.
fn hex(id: Uuid) -> String {
    id.simple().to_string()
}

/// Ids as one parameter, for [`AMONG_1`].
pub(crate) fn id_list(ids: &[Uuid]) -> Result<String> {
    json(&ids.iter().copied().map(hex).collect::<Vec<_>>())
}

/// Does nothing: a write transaction locks the whole database.
pub(crate) async fn lock_budgets(_: &mut Connection, _: &[Uuid]) -> Result<()> {
    Ok(())
}

pub(crate) async fn lock_heads(connection: &mut Connection, ids: &[Uuid]) -> Result<Vec<HeadRow>> {
    query_as(concat!(
        "SELECT ",
        head_columns!(),
        " FROM sessions s WHERE s.id IN (SELECT unhex(value) FROM json_each($1))"
    ))
    .bind(id_list(ids)?)
    .fetch_all(connection)
    .await
    .map_err(db)
}

pub(crate) async fn find_keys(connection: &mut Connection, keys: &[(Uuid, &str)]) -> Result<Vec<KeyedRun>> {
    let mut rows = Vec::new();
    for (tenant, key) in keys {
        let row = query_as(
            "SELECT tenant_id, key, request_hash, run_id FROM idempotency_keys WHERE tenant_id = $1 AND key = $2",
        )
        .bind(tenant)
        .bind(*key)
        .fetch_optional(&mut *connection)
        .await
        .map_err(db)?;
        rows.extend(row);
    }
    Ok(rows)
}

/// Inserts idempotency keys and returns how many were new.
pub(crate) async fn insert_keys(
    connection: &mut Connection,
    keys: &[KeyedRun],
    expires: DbTime,
) -> Result<u64> {
    let mut inserted = 0;
    for it in keys {
        let done = query(
            "INSERT INTO idempotency_keys (tenant_id, key, request_hash, run_id, expires_at) \
             VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING",
        )
        .bind(it.tenant_id)
        .bind(it.key.as_str())
        .bind(it.request_hash.as_slice())
        .bind(it.run_id)
        .bind(expires)
        .execute(&mut *connection)
        .await
        .map_err(db)?;
        inserted += done.rows_affected();
    }
    Ok(inserted)
}

/// Reads those of these runs, each with a tenant, that belong to their tenant.
pub(crate) async fn runs_of_tenants(
    connection: &mut Connection,
    keys: &[(Uuid, Uuid)],
) -> Result<Vec<RunRow>> {
    let keys: Vec<(String, String)> = keys.iter().map(|(run, tenant)| (hex(*run), hex(*tenant))).collect();
    query_as(concat!(
        "SELECT ",
        run_columns!(),
        " FROM json_each($1) k CROSS JOIN runs r ON r.id = unhex(k.value ->> 0) AND r.tenant_id = unhex(k.value ->> 1) \
         JOIN sessions s ON s.id = r.session_id"
    ))
    .bind(json(&keys)?)
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
        " FROM json_each($1) n CROSS JOIN sessions s ON s.id = unhex(n.value) \
         CROSS JOIN workspaces w ON w.id = s.workspace_id CROSS JOIN runs r ON r.id = \
         (SELECT id FROM runs WHERE session_id = s.id AND state < 10 ORDER BY seq LIMIT 1)"
    ))
    .bind(id_list(sessions)?)
    .fetch_all(connection)
    .await
    .map_err(db)
}

pub(crate) async fn save_steps(connection: &mut Connection, steps: &[StepWrite]) -> Result<()> {
    for step in steps {
        query(
            "INSERT INTO steps (run_id, id, position, step) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (run_id, id) DO UPDATE SET step = excluded.step",
        )
        .bind(step.run)
        .bind(step.id)
        .bind(step.position)
        .bind(step.json.as_str())
        .execute(&mut *connection)
        .await
        .map_err(db)?;
    }
    Ok(())
}

pub(crate) async fn load_steps(connection: &mut Connection, runs: &[Uuid]) -> Result<Vec<StepRow>> {
    let mut rows = Vec::new();
    for run in runs {
        let steps: Vec<StepRow> =
            query_as("SELECT run_id, step FROM steps WHERE run_id = $1 ORDER BY position")
                .bind(run)
                .fetch_all(&mut *connection)
                .await
                .map_err(db)?;
        rows.extend(steps);
    }
    Ok(rows)
}

pub(crate) async fn insert_messages(connection: &mut Connection, messages: &[MessageWrite]) -> Result<()> {
    for message in messages {
        query(
            "INSERT INTO messages (session_id, id, run_id, role, parts, created_at, agent, position, ordinal) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        )
        .bind(message.session)
        .bind(message.id)
        .bind(message.run)
        .bind(message.role)
        .bind(message.parts.as_str())
        .bind(message.created_at)
        .bind(message.agent.as_deref())
        .bind(message.position)
        .bind(message.ordinal)
        .execute(&mut *connection)
        .await
        .map_err(db)?;
    }
    Ok(())
}

pub(crate) async fn leases(connection: &mut Connection, workers: &[Uuid]) -> Result<Vec<WorkerLeaseRow>> {
    let mut rows = Vec::with_capacity(workers.len());
    for worker in workers {
        let sql = format!("SELECT id, state, pool, {LEASE_LEFT} AS left_us FROM workers WHERE id = $1");
        let row: Option<WorkerLeaseRow> = query_as(sqlx::AssertSqlSafe(sql))
            .bind(worker)
            .fetch_optional(&mut *connection)
            .await
            .map_err(db)?;
        rows.extend(row);
    }
    Ok(rows)
}

pub(crate) async fn cancel_requested(connection: &mut Connection, runs: &[Uuid]) -> Result<Vec<Uuid>> {
    let mut ids = Vec::new();
    for run in runs {
        let id: Option<Uuid> =
            query_scalar("SELECT id FROM runs WHERE id = $1 AND cancel_at IS NOT NULL AND state < 10")
                .bind(run)
                .fetch_optional(&mut *connection)
                .await
                .map_err(db)?;
        ids.extend(id);
    }
    Ok(ids)
}
