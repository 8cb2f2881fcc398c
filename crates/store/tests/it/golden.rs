//! Databases and bus messages of version 0.1.0 are read, and serialized without a difference.
//!
//! `golden/sqlite-0.1.0.sql` holds the rows that a release build of 0.1.0 wrote: tool runs and agent runs with every kind of end, an approval, a
//! run that waits for its budget.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use remuda_domain::{RunState, SessionId, TenantId, page::PageRequest, run::ParkReason};
use remuda_store::{ApprovalFilter, RunFilter, Store, connect, migrate};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _};

use crate::fixture::TestDb;

const ROWS: &str = include_str!("../golden/sqlite-0.1.0.sql");

fn everything() -> PageRequest {
    PageRequest { size: 200, token: None }
}

#[tokio::test]
async fn a_database_of_version_0_1_0_is_read_in_full() -> Result<()> {
    let database = TestDb::sqlite()?;
    let options = database.options();
    migrate(&options).await?;
    let mut connection = sqlx::SqliteConnection::connect(&options.url).await?;
    connection.execute(AssertSqlSafe(format!("PRAGMA foreign_keys = OFF;\n{ROWS}"))).await?;
    connection.close().await?;

    let store = connect(&options).await?;
    let tenant = store.find_tenant("default").await?.context("the tenant")?.id;
    let runs = store.list_runs(tenant, &RunFilter::default(), &everything()).await?.items;
    let mut states: BTreeMap<&str, usize> = BTreeMap::new();
    for run in &runs {
        *states.entry(run.state.as_str()).or_default() += 1;
    }
    let expected = [("cancelled", 1), ("completed", 5), ("failed", 1), ("parked", 1), ("timed_out", 1)];
    assert_eq!(states, BTreeMap::from(expected));
    let parked = runs.iter().find(|run| run.state == RunState::Parked).context("the parked run")?;
    assert_eq!(parked.parked.map(|parked| parked.reason), Some(ParkReason::Budget));

    let mut kinds = BTreeSet::new();
    for run in &runs {
        kinds.extend(store.list_steps(tenant, run.id).await?.iter().map(|step| step.work.kind()));
    }
    assert_eq!(kinds, BTreeSet::from(["model_call", "tool_call"]));
    let approvals = store.list_approvals(tenant, &ApprovalFilter::default(), &everything()).await?.items;
    assert_eq!(approvals.len(), 1);
    let tasks: Vec<String> = store.list_tasks().await?.into_iter().map(|task| task.last.name).collect();
    assert!(
        tasks.contains(&"find_unheld".to_owned()) && tasks.contains(&"take_back".to_owned()),
        "{tasks:?}"
    );

    let sessions: BTreeSet<SessionId> = runs.iter().map(|run| run.session).collect();
    for session in sessions {
        check_stream(&*store, tenant, session).await?;
    }
    Ok(())
}

/// The cursors of a session have no hole, and its messages can be read.
async fn check_stream(store: &dyn Store, tenant: TenantId, session: SessionId) -> Result<()> {
    let events = store.read_events(tenant, session, 0, 1000).await?.events;
    let cursors: Vec<i64> = events.iter().map(|event| event.cursor).collect();
    let expected: Vec<i64> = (1..).take(cursors.len()).collect();
    ensure!(!cursors.is_empty() && cursors == expected, "{session}: {cursors:?}");
    store.list_messages(tenant, session, &everything()).await?;
    Ok(())
}
