//! Trees of runs and sessions.

use async_trait::async_trait;
use remuda_domain::{
    RunId, SessionId, TenantId,
    budget::Total,
    error::Result,
    page::{Page, PageRequest},
    session::{Session, SessionRef},
    step::{self, Step},
};
use serde_json::Value;
use sqlx::QueryBuilder;
use uuid::Uuid;

use super::{
    descendants,
    dialect::{self, Connection, Db},
    park, runs, sessions,
    store::SqlStore,
    totals,
};
use crate::{CancelledRuns, ChildReport, SessionChange, Sessions, Trees, error::db, rows::SessionRow};

/// Longer answers are truncated for the parent.
const MAX_ANSWER_BYTES: usize = 256 * 1024;

async fn load_reports(
    connection: &mut Connection,
    tenant: TenantId,
    ids: &[Uuid],
) -> Result<Vec<ChildReport>> {
    let keys: Vec<(Uuid, Uuid)> = ids.iter().map(|id| (*id, tenant.as_uuid())).collect();
    let rows = dialect::runs_of_tenants(connection, &keys).await?;
    let mut reports = Vec::with_capacity(rows.len());
    for row in rows {
        let run = row.clone().into_run()?;
        let mut answer = None;
        if run.state.is_terminal() {
            answer = child_answer(&runs::steps_of(connection, &row).await?);
        }
        let (state, failure) = (run.state, run.failure);
        reports.push(ChildReport { run: run.id, session: run.session, state, answer, failure });
    }
    Ok(reports)
}

/// The answer for the parent: the agent's final answer, or else the output of the last tool call.
fn child_answer(steps: &[Step]) -> Option<String> {
    let from_tool = || {
        let outcome = steps.iter().rev().find_map(Step::call_outcome)?;
        match &outcome.output {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        }
    };
    let mut text = step::answer(steps).or_else(from_tool)?;
    text.truncate(text.floor_char_boundary(MAX_ANSWER_BYTES));
    Some(text)
}

#[async_trait]
impl Trees for SqlStore {
    async fn child_reports(&self, tenant: TenantId, runs: &[RunId]) -> Result<Vec<ChildReport>> {
        let ids: Vec<Uuid> = runs.iter().map(|run| run.as_uuid()).collect();
        let mut connection = self.context.reader.acquire().await.map_err(db)?;
        load_reports(&mut connection, tenant, &ids).await
    }

    async fn resume_if_ready(&self, tenant: TenantId, run: RunId) -> Result<Option<SessionChange>> {
        let context = self.context.clone();
        self.run_to_completion(async move { park::resume_if_ready(&context, Some(tenant), run).await }).await
    }

    async fn cancel_children(&self, tenant: TenantId, run: RunId, reason: &str) -> Result<CancelledRuns> {
        let (context, reason) = (self.context.clone(), reason.to_owned());
        self.run_to_completion(
            async move { descendants::cancel_children(&context, tenant, run, &reason).await },
        )
        .await
    }

    async fn list_child_sessions(
        &self,
        tenant: TenantId,
        session: SessionId,
        page: &PageRequest,
    ) -> Result<Page<Session>> {
        self.get_session(tenant, &SessionRef::Id(session)).await?;
        let mut sql: QueryBuilder<Db> =
            QueryBuilder::new(concat!("SELECT ", session_columns!(), " FROM sessions WHERE parent_id = "));
        // Child sessions always belong to the same tenant.
        sql.push_bind(session.as_uuid());
        if let Some(after) = page.after::<SessionId>()? {
            sql.push(" AND id > ").push_bind(after.as_uuid());
        }
        sql.push(" ORDER BY id LIMIT ").push_bind(i64::from(page.size) + 1);
        let mut connection = self.context.reader.acquire().await.map_err(db)?;
        let rows: Vec<SessionRow> = sql.build_query_as().fetch_all(&mut *connection).await.map_err(db)?;
        let children = sessions::with_budgets(&mut connection, rows).await?;
        Ok(Page::from_rows(children, page.size, |session| session.id.to_string()))
    }

    async fn session_totals(&self, tenant: TenantId, session: SessionId) -> Result<(Total, Total)> {
        let mut connection = dialect::snapshot(&self.context.reader).await?;
        let totals = totals::of_session(&mut connection, tenant, session).await?;
        connection.rollback().await.map_err(db)?;
        Ok(totals)
    }

    async fn run_totals(&self, tenant: TenantId, run: RunId) -> Result<(Total, Total)> {
        let mut connection = dialect::snapshot(&self.context.reader).await?;
        let totals = totals::of_run(&mut connection, tenant, run).await?;
        connection.rollback().await.map_err(db)?;
        Ok(totals)
    }
}
