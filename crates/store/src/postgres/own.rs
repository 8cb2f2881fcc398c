//! A connection of one's own.
//!
//! A pool asks a connection whether it is well whenever it comes back, which is one more round trip per flush, and hands them out in turns,
//! so that every server process has to find its statements in a cold cache. Whoever flushes all the time keeps one instead.
//!
//! Plans are kept, too, and one that was made while a table had a few rows goes through the whole table: cheap then, and ever dearer until the
//! next ANALYZE. So they are made anew after a while, which doubles each time up to a limit, as a table's size does that
//! grows steadily. One that is idle for long has its plans until ANALYZE, as does everybody who takes connections from the pool.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use remuda_domain::error::Result;
use sqlx::{Executor as _, PgPool, Postgres, pool::PoolConnection};
use tokio::time::Instant;

use crate::error::db;

/// A connection that was not used for so long may be gone without a sign: the pool finds out.
const LONG_IDLE: Duration = Duration::from_secs(2);
/// Of a pool that has fewer, none is kept: others need them.
const MANY: u32 = 10;
/// How long plans are kept, at first and at last.
const FIRST_PLANS: Duration = Duration::from_millis(250);
const LAST_PLANS: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Own {
    pool: PgPool,
    kept: Mutex<Option<(OwnConnection, Instant)>>,
}

/// A connection that is kept, and the age of its plans.
#[derive(Debug)]
pub(super) struct OwnConnection {
    pub(super) connection: PoolConnection<Postgres>,
    planned: Instant,
    plans_last: Duration,
}

impl Own {
    pub(super) fn new(pool: &PgPool) -> Self {
        Self { pool: pool.clone(), kept: Mutex::default() }
    }

    pub(super) async fn take(&self) -> Result<OwnConnection> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut own = match kept {
            Some((own, used)) if used.elapsed() < LONG_IDLE => own,
            _ => OwnConnection::new(self.pool.acquire().await.map_err(db)?),
        };
        own.plan_anew().await?;
        Ok(own)
    }

    /// Keeps a connection on which nothing went wrong. All others go back to the pool.
    pub(super) fn keep(&self, own: OwnConnection) {
        if self.pool.options().get_max_connections() >= MANY {
            let kept = Some((own, Instant::now()));
            *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = kept;
        }
    }
}

impl OwnConnection {
    fn new(connection: PoolConnection<Postgres>) -> Self {
        Self { connection, planned: Instant::now(), plans_last: FIRST_PLANS }
    }

    /// Forgets plans that are old. Statements stay prepared.
    async fn plan_anew(&mut self) -> Result<()> {
        if self.planned.elapsed() >= self.plans_last {
            self.connection.execute("DISCARD PLANS").await.map_err(db)?;
            self.planned = Instant::now();
            self.plans_last = (self.plans_last * 2).min(LAST_PLANS);
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

    /// A table that had nothing in it is gone through from beginning to end, until the plan is made anew.
    #[tokio::test]
    async fn plans_grow_with_their_tables() {
        let database = TestDatabase::create().unwrap();
        let (pool, _) = dialect::open(&database.url(), 1).await.unwrap();
        let mut own = OwnConnection::new(pool.acquire().await.unwrap());
        let connection = &mut *own.connection;
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
        own.plan_anew().await.unwrap();
        let kept: Vec<String> = query_scalar(plan).fetch_all(&mut *own.connection).await.unwrap();
        assert_eq!(kept, first, "it is not old yet");
        own.planned -= FIRST_PLANS;
        own.plan_anew().await.unwrap();
        assert_eq!(own.plans_last, 2 * FIRST_PLANS);
        let anew: Vec<String> = query_scalar(plan).fetch_all(&mut *own.connection).await.unwrap();
        assert!(anew.iter().any(|line| line.contains("Index Cond: (id = n.id)")), "{anew:#?} was {first:#?}");
    }
}
