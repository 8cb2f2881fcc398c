//! A connection of one's own.
//!
//! A pool asks a connection whether it is well whenever it comes back, which is one more round trip per flush, and hands them out in turns,
//! so that every server process has to find its statements in a cold cache. Whoever flushes all the time keeps one instead.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use remuda_domain::error::Result;
use sqlx::{PgPool, Postgres, pool::PoolConnection};
use tokio::time::Instant;

use crate::error::db;

/// A connection that was not used for so long may be gone without a sign: the pool finds out.
const LONG_IDLE: Duration = Duration::from_secs(2);
/// Of a pool that has fewer, none is kept: others need them.
const MANY: u32 = 10;

#[derive(Debug)]
pub(super) struct Own {
    pool: PgPool,
    kept: Mutex<Option<(PoolConnection<Postgres>, Instant)>>,
}

impl Own {
    pub(super) fn new(pool: &PgPool) -> Self {
        Self { pool: pool.clone(), kept: Mutex::default() }
    }

    pub(super) async fn take(&self) -> Result<PoolConnection<Postgres>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).take();
        match kept {
            Some((connection, used)) if used.elapsed() < LONG_IDLE => Ok(connection),
            _ => self.pool.acquire().await.map_err(db),
        }
    }

    /// Keeps a connection on which nothing went wrong. All others go back to the pool.
    pub(super) fn keep(&self, connection: PoolConnection<Postgres>) {
        if self.pool.options().get_max_connections() >= MANY {
            let kept = Some((connection, Instant::now()));
            *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = kept;
        }
    }
}
