//! Labels of runs: stored once, inherited by children, and found in pages.

use anyhow::{Context as _, Result};
use remuda_domain::{Labels, Run, RunId, RunState, SessionId, TenantId, page::PageRequest};
use remuda_store::{NewRun, RunFilter, Submitted};

use crate::{
    fixture::{Fixture, LONG_LEASE, completed},
    query_plans::count,
    tree_helpers::{child, creating_children},
};

fn labels(texts: &[&str]) -> Result<Labels> {
    Ok(Labels::parse(texts.iter().copied())?)
}

async fn submit(fixture: &Fixture, session: SessionId, texts: &[&str]) -> Result<Submitted> {
    let new = fixture.new_run(session);
    let run = Run { labels: labels(texts)?, ..new.run };
    Ok(fixture.store.submit(NewRun { run, ..new }).await?)
}

/// The ids of all runs with these labels, page by page.
async fn found(fixture: &Fixture, tenant: TenantId, texts: &[&str], size: u32) -> Result<Vec<RunId>> {
    let filter = RunFilter { labels: labels(texts)?, ..RunFilter::default() };
    let (mut ids, mut request) = (Vec::new(), PageRequest { size, token: None });
    loop {
        let page = fixture.store.list_runs(tenant, &filter, &request).await?;
        assert!(page.items.len() <= size as usize);
        ids.extend(page.items.iter().map(|run| run.id));
        request.token = page.next;
        if request.token.is_none() {
            return Ok(ids);
        }
    }
}

pub(crate) async fn labels_are_returned_wherever_the_run_is(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let expected = labels(&["team=core", "env=prod = 1", "empty="])?;
    // The first is written by the fast path, the second, with a key, is not.
    let plain = submit(fixture, session, &["team=core", "env=prod = 1", "empty="]).await?.run;
    let mut keyed = fixture.keyed_run(session, "k", 1);
    keyed.run.labels = expected.clone();
    let keyed = fixture.store.submit(keyed).await?.run;
    let unlabelled = fixture.submit(session).await?.run;
    let mut grant = Some(fixture.granted(session, fixture.worker(LONG_LEASE).await?).await?);
    for (run, expected) in [(plain, &expected), (keyed, &expected), (unlabelled, &Labels::default())] {
        assert_eq!(run.labels, *expected);
        let granted = grant.context("a run is left")?;
        assert_eq!((granted.run.id, &granted.run.labels), (run.id, expected));
        grant = fixture.store.commit(completed(&granted)).await?.next.map(|next| *next);
        assert_eq!(fixture.run(run.id).await?.labels, *expected);
    }
    fixture.check(session).await
}

pub(crate) async fn runs_are_listed_by_all_given_labels(fixture: &Fixture) -> Result<()> {
    let (one, two) = (fixture.session().await?, fixture.session().await?);
    let mut ids = Vec::new();
    for (session, texts) in [
        (one, ["team=core", "env=prod"].as_slice()),
        (two, &["team=core", "env=test"]),
        (one, &["team=docs", "env=prod"]),
        (two, &["team=core", "env=prod"]),
        (one, &[]),
    ] {
        ids.push(submit(fixture, session, texts).await?.run.id);
    }
    let tenant = fixture.tenant;
    for size in [1, 2, 10] {
        assert_eq!(found(fixture, tenant, &["team=core"], size).await?, [ids[3], ids[1], ids[0]]);
        assert_eq!(found(fixture, tenant, &["team=core", "env=prod"], size).await?, [ids[3], ids[0]]);
    }
    assert_eq!(found(fixture, tenant, &["team=core", "env=none"], 10).await?, []);
    assert_eq!(found(fixture, tenant, &["team=cor"], 10).await?, []);
    let filter =
        RunFilter { session: Some(one), states: vec![RunState::Queued], labels: labels(&["env=prod"])? };
    let page = fixture.store.list_runs(tenant, &filter, &PageRequest { size: 10, token: None }).await?;
    assert_eq!(page.items.iter().map(|run| run.id).collect::<Vec<_>>(), [ids[2], ids[0]]);
    let stranger = fixture.stranger().await?;
    assert_eq!(found(fixture, stranger, &["team=core"], 10).await?, []);
    Ok(())
}

pub(crate) async fn children_inherit_the_labels_of_their_parent(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let parent = submit(fixture, session, &["team=core"]).await?.run;
    let worker = fixture.worker(LONG_LEASE).await?;
    let grant = fixture.granted(session, worker).await?;
    // What the worker says about labels does not count.
    let mut child = child();
    child.run.labels = labels(&["team=docs"])?;
    fixture.store.commit(creating_children(&grant, &[child.clone()])).await?;
    assert_eq!(fixture.run(child.run.id).await?.labels, parent.labels);
    assert_eq!(found(fixture, fixture.tenant, &["team=core"], 10).await?, [child.run.id, parent.id]);
    assert_eq!(found(fixture, fixture.tenant, &["team=docs"], 10).await?, []);
    Ok(())
}

pub(crate) async fn deleted_session_leaves_no_labels(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    submit(fixture, session, &["team=core", "env=prod"]).await?;
    let worker = fixture.worker(LONG_LEASE).await?;
    let grant = fixture.granted(session, worker).await?;
    fixture.store.commit(completed(&grant)).await?;
    assert_eq!(count(fixture, "SELECT count(*) FROM run_labels").await?, 2);
    fixture.store.delete_session(fixture.tenant, session).await?;
    assert_eq!(count(fixture, "SELECT count(*) FROM run_labels").await?, 0);
    Ok(())
}
