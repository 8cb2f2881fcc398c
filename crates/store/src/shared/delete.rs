//! Deletes sessions with all dependent rows.

use remuda_domain::{Code, Error, SessionId, TenantId, error::Result};
use sqlx::{AssertSqlSafe, query, query_scalar};
use uuid::Uuid;

use super::{
    chunks,
    dialect::{self, AMONG_1, Connection, id_list},
    lock::lock,
    store::Context,
    submit::session_not_found,
};
use crate::error::db;

/// Most sessions that one call deletes.
const MAX_SESSIONS: usize = 1000;

/// The runs of the sessions in `$1`.
macro_rules! their_runs {
    () => {
        "(SELECT id FROM runs WHERE session_id {among})"
    };
}

/// Deletes everything, in this order: rows that refer to a run before the run.
const STATEMENTS: [&str; 15] = [
    concat!("DELETE FROM run_labels WHERE run_id IN ", their_runs!()),
    concat!("DELETE FROM steps WHERE run_id IN ", their_runs!()),
    concat!("DELETE FROM spent_steps WHERE run_id IN ", their_runs!()),
    concat!("DELETE FROM reservations WHERE run_id IN ", their_runs!()),
    concat!("DELETE FROM waits WHERE run_id IN ", their_runs!()),
    concat!("DELETE FROM budgets WHERE id IN ", their_runs!()),
    "DELETE FROM budgets WHERE id {among}",
    concat!(
        // An expired key may have been reused by a run of another session.
        "DELETE FROM idempotency_keys WHERE (tenant_id, key) IN \
         (SELECT tenant_id, idempotency_key FROM runs WHERE session_id {among} AND idempotency_key IS NOT NULL) AND run_id IN ",
        their_runs!()
    ),
    "DELETE FROM dead_letters WHERE webhook_id IN (SELECT id FROM webhooks WHERE session_id {among})",
    "DELETE FROM webhooks WHERE session_id {among}",
    "DELETE FROM approvals WHERE session_id {among}",
    "DELETE FROM messages WHERE session_id {among}",
    chunks::DELETE_ALL,
    "DELETE FROM runs WHERE session_id {among}",
    "DELETE FROM sessions WHERE id {among}",
];

/// Deletes a session and its descendants. Fails with `session_busy` while one of them has an unfinished run.
pub(super) async fn delete(
    context: &Context,
    tenant: TenantId,
    session: SessionId,
) -> Result<Vec<SessionId>> {
    let mut tx = dialect::begin(&context.writer).await?;
    let ids = tree(&mut tx, tenant, session).await?;
    lock(&mut tx, ids.iter().copied()).await?;
    // Checked under the lock: a session created meanwhile would lose its parent.
    if tree(&mut tx, tenant, session).await?.len() != ids.len() || count_pending(&mut tx, &ids).await? > 0 {
        let message =
            "the session or one of its descendants has unfinished runs: cancel them, or wait for them";
        return Err(Error::new(Code::SessionBusy, message));
    }
    delete_sessions(&mut tx, &ids).await?;
    tx.commit().await.map_err(db)?;
    Ok(ids.into_iter().map(SessionId::from_uuid).collect())
}

/// Deletes locked sessions with all dependent rows.
pub(super) async fn delete_sessions(connection: &mut Connection, ids: &[Uuid]) -> Result<()> {
    for statement in STATEMENTS {
        let sql = statement.replace("{among}", AMONG_1);
        query(AssertSqlSafe(sql)).bind(id_list(ids)?).execute(&mut *connection).await.map_err(db)?;
    }
    Ok(())
}

/// The session and its descendants.
async fn tree(connection: &mut Connection, tenant: TenantId, session: SessionId) -> Result<Vec<Uuid>> {
    let ids: Vec<Uuid> = query_scalar(
        "WITH RECURSIVE tree (id) AS (SELECT id FROM sessions WHERE id = $1 AND tenant_id = $2 \
         UNION ALL SELECT s.id FROM tree t JOIN sessions s ON s.parent_id = t.id) SELECT id FROM tree LIMIT $3",
    )
    .bind(session.as_uuid())
    .bind(tenant.as_uuid())
    .bind(i64::try_from(MAX_SESSIONS + 1).unwrap_or(i64::MAX))
    .fetch_all(&mut *connection)
    .await
    .map_err(db)?;
    if ids.is_empty() {
        return Err(session_not_found());
    }
    if ids.len() > MAX_SESSIONS {
        let message =
            format!("the session has more than {MAX_SESSIONS} descendants: delete some of them first");
        return Err(Error::new(Code::TooLarge, message).at("session"));
    }
    Ok(ids)
}

async fn count_pending(connection: &mut Connection, ids: &[Uuid]) -> Result<i64> {
    let sql = format!("SELECT COUNT(*) FROM sessions WHERE id {AMONG_1} AND pending > 0");
    query_scalar(AssertSqlSafe(sql)).bind(id_list(ids)?).fetch_one(&mut *connection).await.map_err(db)
}
