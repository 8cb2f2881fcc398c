//! What SQLite does its own way: one writer at a time, and cheap single-row statements inside one transaction.

use std::{str::FromStr, time::Duration};

use remuda_domain::error::Result;
use sqlx::{
    SqliteConnection, SqlitePool, Transaction, query, query_as, query_scalar,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};
use uuid::Uuid;

use crate::{
    error::db,
    rows::{
        Chunk, HeadRow, HeadRunRow, KeyedRun, LeaseRow, LockedHead, MessageWrite, RunFinish, RunInsert,
        StepRow, StepWrite,
    },
    time::DbTime,
};

pub(crate) type Db = sqlx::Sqlite;
pub(crate) type Connection = SqliteConnection;
pub(crate) type DbPool = SqlitePool;

pub(crate) const NOW: &str = "CAST(unixepoch('subsec') * 1000000 AS INTEGER)";
/// A point in time `$2` microseconds from now.
pub(crate) const IN_MICROS_2: &str = "CAST(unixepoch('subsec') * 1000000 AS INTEGER) + $2";
/// Microseconds until `lease_until`.
pub(crate) const LEASE_LEFT: &str = "lease_until - CAST(unixepoch('subsec') * 1000000 AS INTEGER)";
pub(crate) const MAX_BATCH: usize = 1024;

/// Opens a pool of one writer and a pool of readers: SQLite has room for one writer, and waiting for it in line is
/// quicker than trying again.
pub(crate) async fn open(url: &str, max_connections: u32) -> Result<(DbPool, DbPool), sqlx::Error> {
    let options = SqliteConnectOptions::from_str(url)?
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        // FULL: a commit is on disk before it is acknowledged, as on PostgreSQL.
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(Duration::from_secs(10))
        .pragma("wal_autocheckpoint", "4000")
        .pragma("cache_size", "-65536")
        .statement_cache_capacity(256);
    let writer = SqlitePoolOptions::new().max_connections(1).connect_with(options.clone()).await?;
    let readers = SqlitePoolOptions::new()
        .max_connections(max_connections)
        .connect_with(options.pragma("query_only", "on").optimize_on_close(false, None))
        .await?;
    Ok((writer, readers))
}

/// Takes the write lock at once: a transaction that reads first and writes later could fail in the middle.
pub(crate) async fn begin(pool: &DbPool) -> Result<Transaction<'static, Db>> {
    pool.begin_with("BEGIN IMMEDIATE").await.map_err(db)
}

/// A transaction that only reads, and sees one moment.
pub(crate) async fn snapshot(pool: &DbPool) -> Result<Transaction<'static, Db>> {
    pool.begin().await.map_err(db)
}

pub(crate) async fn lock_heads(connection: &mut Connection, ids: &[Uuid]) -> Result<Vec<HeadRow>> {
    let mut rows = Vec::with_capacity(ids.len());
    for id in ids {
        let row = query_as(concat!("SELECT ", head_columns!(), " FROM sessions WHERE id = $1"))
            .bind(id)
            .fetch_optional(&mut *connection)
            .await
            .map_err(db)?;
        rows.extend(row);
    }
    Ok(rows)
}

pub(crate) async fn save_heads(connection: &mut Connection, heads: &[&LockedHead]) -> Result<()> {
    for it in heads {
        query(
            "UPDATE sessions SET epoch = $2, owner = $3, current_run = $4, current_started_at = $5, pending = $6, \
             last_seq = $7, last_cursor = $8 WHERE id = $1",
        )
        .bind(it.head.session.as_uuid())
        .bind(it.head.epoch)
        .bind(it.head.owner.worker().map(remuda_domain::WorkerId::as_uuid))
        .bind(it.head.current.map(remuda_domain::RunId::as_uuid))
        .bind(it.current_started_at.map(DbTime))
        .bind(it.head.pending)
        .bind(it.head.last_seq)
        .bind(it.head.last_cursor)
        .execute(&mut *connection)
        .await
        .map_err(db)?;
    }
    Ok(())
}

pub(crate) async fn insert_runs(connection: &mut Connection, runs: &[RunInsert]) -> Result<()> {
    for run in runs {
        query(
            "INSERT INTO runs (id, tenant_id, session_id, seq, state, input, timeout_ms, created_at, idempotency_key, \
             traceparent) VALUES ($1, $2, $3, $4, 0, $5, $6, $7, $8, $9)",
        )
        .bind(run.id)
        .bind(run.tenant)
        .bind(run.session)
        .bind(run.seq)
        .bind(run.input.as_str())
        .bind(run.timeout_ms)
        .bind(run.created_at)
        .bind(run.idempotency_key.as_deref())
        .bind(run.traceparent.as_deref())
        .execute(&mut *connection)
        .await
        .map_err(db)?;
    }
    Ok(())
}

pub(crate) async fn append_chunks(connection: &mut Connection, chunks: &[Chunk]) -> Result<()> {
    for chunk in chunks {
        query("INSERT INTO events (session_id, last_cursor, chunk) VALUES ($1, $2, $3)")
            .bind(chunk.session)
            .bind(chunk.last_cursor)
            .bind(chunk.json.as_str())
            .execute(&mut *connection)
            .await
            .map_err(db)?;
    }
    Ok(())
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

/// Remembers keys, and says how many were new.
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

pub(crate) async fn head_runs(connection: &mut Connection, sessions: &[Uuid]) -> Result<Vec<HeadRunRow>> {
    let mut rows = Vec::with_capacity(sessions.len());
    for session in sessions {
        let row = query_as(concat!(
            "SELECT ",
            run_columns!(),
            ", w.root FROM runs r JOIN sessions s ON s.id = r.session_id JOIN workspaces w ON w.id = s.workspace_id \
             WHERE r.session_id = $1 AND r.state < 10 ORDER BY r.seq LIMIT 1"
        ))
        .bind(session)
        .fetch_optional(&mut *connection)
        .await
        .map_err(db)?;
        rows.extend(row);
    }
    Ok(rows)
}

pub(crate) async fn finish_runs(connection: &mut Connection, runs: &[RunFinish]) -> Result<()> {
    for run in runs {
        query(
            "UPDATE runs SET state = $2, started_at = $3, finished_at = $4, failure = $5, last_steps = $6 \
             WHERE id = $1 AND state < 10",
        )
        .bind(run.id)
        .bind(run.state)
        .bind(run.started_at)
        .bind(run.finished_at)
        .bind(run.failure.as_deref())
        .bind(run.last_steps.as_deref())
        .execute(&mut *connection)
        .await
        .map_err(db)?;
    }
    Ok(())
}

pub(crate) async fn count_lost_attempts(connection: &mut Connection, runs: &[Uuid]) -> Result<()> {
    for run in runs {
        query("UPDATE runs SET lost_attempts = lost_attempts + 1 WHERE id = $1")
            .bind(run)
            .execute(&mut *connection)
            .await
            .map_err(db)?;
    }
    Ok(())
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
            "INSERT INTO messages (session_id, id, run_id, role, parts, created_at) VALUES ($1, $2, $3, $4, $5, $6)",
        )
        .bind(message.session)
        .bind(message.id)
        .bind(message.run)
        .bind(message.role)
        .bind(message.parts.as_str())
        .bind(message.created_at)
        .execute(&mut *connection)
        .await
        .map_err(db)?;
    }
    Ok(())
}

pub(crate) async fn leases(connection: &mut Connection, workers: &[Uuid]) -> Result<Vec<LeaseRow>> {
    let mut rows = Vec::with_capacity(workers.len());
    for worker in workers {
        let sql = format!("SELECT id, state, {LEASE_LEFT} AS left_us FROM workers WHERE id = $1");
        let row: Option<LeaseRow> = query_as(sqlx::AssertSqlSafe(sql))
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
