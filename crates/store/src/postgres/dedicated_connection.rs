//! One connection kept per flush task, outside the pool's rotation.
//!
//! A pool tests a connection each time it is returned, which is one more round trip per flush, and hands connections
//! out in rotation, so every server process has to find its prepared statements in a cold cache. A task that flushes
//! continuously keeps one connection instead.
//!
//! Cached plans need care: a plan made while a table had a few rows scans the whole table. That is cheap at first and
//! more expensive as the table grows, until the next ANALYZE. Therefore [`CheckedOutConnection`] discards its plans
//! after an interval that doubles up to a limit, because a steadily growing table needs longer and longer to double. A
//! connection that is idle for long keeps its plans until ANALYZE, like every connection of the pool.

use std::time::Duration;

use parking_lot::Mutex;
use remuda_domain::error::Result;
use sqlx::{Executor as _, PgPool, Postgres, pool::PoolConnection};
use tokio::time::Instant;

use crate::error::db;

/// A connection idle for longer may be dead; it goes back to the pool, which tests it.
const MAX_IDLE: Duration = Duration::from_secs(2);
/// A smaller pool keeps no dedicated connection: other callers need them all.
const MIN_POOL_SIZE: u32 = 10;
/// How long cached plans are used: the first interval, and the longest one.
const MIN_PLAN_LIFETIME: Duration = Duration::from_millis(250);
const MAX_PLAN_LIFETIME: Duration = Duration::from_secs(60);

/// Holds the connection between flushes.
#[derive(Debug)]
pub(super) struct DedicatedConnection {
    pool: PgPool,
    idle: Mutex<Option<(CheckedOutConnection, Instant)>>,
}

/// A connection in use, with the age of its cached plans.
#[derive(Debug)]
pub(super) struct CheckedOutConnection {
    pub(super) connection: PoolConnection<Postgres>,
    planned_at: Instant,
    plan_lifetime: Duration,
}

impl DedicatedConnection {
    pub(super) fn new(pool: &PgPool) -> Self {
        Self { pool: pool.clone(), idle: Mutex::default() }
    }

    pub(super) async fn acquire(&self) -> Result<CheckedOutConnection> {
        let idle = self.idle.lock().take();
        let mut checked_out = match idle {
            Some((checked_out, used)) if used.elapsed() < MAX_IDLE => checked_out,
            _ => CheckedOutConnection::new(self.pool.acquire().await.map_err(db)?),
        };
        checked_out.discard_stale_plans().await?;
        Ok(checked_out)
    }

    /// Keeps a connection for the next flush. Call it only after success; a dropped connection goes back to the pool.
    pub(super) fn release(&self, checked_out: CheckedOutConnection) {
        if self.pool.options().get_max_connections() >= MIN_POOL_SIZE {
            let idle = Some((checked_out, Instant::now()));
            *self.idle.lock() = idle;
        }
    }
}

impl CheckedOutConnection {
    fn new(connection: PoolConnection<Postgres>) -> Self {
        Self { connection, planned_at: Instant::now(), plan_lifetime: MIN_PLAN_LIFETIME }
    }

    /// Discards cached plans that are too old. Statements stay prepared.
    async fn discard_stale_plans(&mut self) -> Result<()> {
        if self.planned_at.elapsed() >= self.plan_lifetime {
            self.connection.execute("DISCARD PLANS").await.map_err(db)?;
            self.planned_at = Instant::now();
            self.plan_lifetime = (self.plan_lifetime * 2).min(MAX_PLAN_LIFETIME);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use remuda_testkit::TestDatabase;
    use sqlx::{AssertSqlSafe, query_scalar, raw_sql};

    use super::super::dialect;
    use super::*;

    /// A plan made for an almost empty table is a sequential scan until it is discarded.
    #[tokio::test]
    async fn stale_plans_are_replaced_as_the_table_grows() {
        let database = TestDatabase::create().unwrap();
        let (pool, _) = dialect::open(&database.url(), 1).await.unwrap();
        let mut checked_out = CheckedOutConnection::new(pool.acquire().await.unwrap());
        let connection = &mut *checked_out.connection;
        raw_sql(
            "CREATE TABLE t (id int PRIMARY KEY, done bool); INSERT INTO t VALUES (1, false); ANALYZE t; \
             PREPARE p (int[]) AS UPDATE t SET done = true FROM unnest($1) AS n (id) WHERE t.id = n.id; EXECUTE p ('{1}')",
        )
        .execute(&mut *connection)
        .await
        .unwrap();
        let plan = "EXPLAIN EXECUTE p ('{1}')";
        let first: Vec<String> = query_scalar(plan).fetch_all(&mut *connection).await.unwrap();
        let grow = "INSERT INTO t SELECT i, false FROM generate_series(2, 5000) i";
        raw_sql(AssertSqlSafe(grow)).execute(&mut *connection).await.unwrap();
        checked_out.discard_stale_plans().await.unwrap();
        let unchanged: Vec<String> =
            query_scalar(plan).fetch_all(&mut *checked_out.connection).await.unwrap();
        assert_eq!(unchanged, first, "the plan is not stale yet");
        checked_out.planned_at -= MIN_PLAN_LIFETIME;
        checked_out.discard_stale_plans().await.unwrap();
        assert_eq!(checked_out.plan_lifetime, 2 * MIN_PLAN_LIFETIME);
        let replanned: Vec<String> =
            query_scalar(plan).fetch_all(&mut *checked_out.connection).await.unwrap();
        assert!(
            replanned.iter().any(|line| line.contains("Index Cond: (id = n.id)")),
            "{replanned:#?} was {first:#?}"
        );
    }
}
