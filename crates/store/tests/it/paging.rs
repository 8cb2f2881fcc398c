//! Pagination.

use std::collections::HashSet;

use anyhow::Result;
use remuda_domain::{Code, RunState, page::PageRequest};
use remuda_store::RunFilter;

use crate::fixture::{Fixture, LONG_LEASE, completed, page, refusal};

pub(crate) async fn sessions_are_listed_newest_first_and_pages_are_stable_under_inserts(
    fixture: &Fixture,
) -> Result<()> {
    let mut made = Vec::new();
    for _ in 0..10 {
        made.push(fixture.session().await?);
    }
    let mut seen = Vec::new();
    let mut request = page(3);
    loop {
        let got = fixture.store.list_sessions(fixture.tenant, None, &request).await?;
        assert!(got.items.len() <= 3);
        seen.extend(got.items.into_iter().map(|session| session.id));
        // A newer session must neither shift nor join the following pages.
        fixture.session().await?;
        request.token = got.next;
        if request.token.is_none() {
            break;
        }
    }
    made.reverse();
    assert_eq!(seen, made);
    let exact = fixture.store.list_sessions(fixture.tenant, None, &page(14)).await?;
    assert_eq!((exact.items.len(), exact.next), (14, None));
    Ok(())
}

pub(crate) async fn runs_are_filtered_and_paged(fixture: &Fixture) -> Result<()> {
    let (one, two) = (fixture.session().await?, fixture.session().await?);
    let mut ids = Vec::new();
    for session in [one, one, one, two] {
        ids.push(fixture.submit(session).await?.run.id);
    }
    let worker = fixture.worker(LONG_LEASE).await?;
    let grant = fixture.granted(one, worker).await?;
    fixture.store.commit(completed(&grant)).await?;
    // Now session one has: completed, running, queued; session two: queued.
    let of = async |session, states: &[RunState]| -> Result<Vec<_>> {
        let filter = RunFilter { session, states: states.to_vec(), ..RunFilter::default() };
        let got = fixture.store.list_runs(fixture.tenant, &filter, &page(10)).await?;
        assert!(got.items.iter().all(|run| states.is_empty() || states.contains(&run.state)));
        Ok(got.items.into_iter().map(|run| run.id).collect())
    };
    assert_eq!(of(None, &[]).await?, [ids[3], ids[2], ids[1], ids[0]]);
    assert_eq!(of(Some(one), &[]).await?, [ids[2], ids[1], ids[0]]);
    assert_eq!(of(None, &[RunState::Queued]).await?, [ids[3], ids[2]]);
    assert_eq!(of(Some(one), &[RunState::Running]).await?, [ids[1]]);
    assert_eq!(of(None, &[RunState::Running, RunState::Completed]).await?, [ids[1], ids[0]]);
    assert_eq!(of(None, &[RunState::Failed, RunState::Parked]).await?, []);
    let mut seen = HashSet::new();
    let mut request = page(1);
    while seen.len() < 4 {
        let got = fixture.store.list_runs(fixture.tenant, &RunFilter::default(), &request).await?;
        assert!(seen.insert(got.items[0].id));
        assert_eq!(got.next.is_none(), seen.len() == 4);
        request.token = got.next;
    }
    let stranger = fixture.stranger().await?;
    let filter = RunFilter { session: Some(one), ..RunFilter::default() };
    assert_eq!(fixture.store.list_runs(stranger, &filter, &page(10)).await?.items, []);
    Ok(())
}

pub(crate) async fn queue_is_paged_in_execution_order(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(fixture.submit(session).await?.run.id);
    }
    let worker = fixture.worker(LONG_LEASE).await?;
    let grant = fixture.granted(session, worker).await?;
    fixture.store.commit(completed(&grant)).await?;
    let first = fixture.store.list_queue(fixture.tenant, session, &page(2)).await?;
    let rest = PageRequest { size: 2, token: first.next };
    let second = fixture.store.list_queue(fixture.tenant, session, &rest).await?;
    let queue: Vec<_> = first.items.iter().chain(&second.items).map(|run| (run.id, run.state)).collect();
    let queued = RunState::Queued;
    assert_eq!(queue, [(ids[1], RunState::Running), (ids[2], queued), (ids[3], queued), (ids[4], queued)]);
    assert_eq!(second.next, None);
    Ok(())
}

pub(crate) async fn invalid_page_token_error_names_the_field(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let bad = PageRequest { size: 5, token: Some("'; DROP TABLE runs; --".into()) };
    assert_eq!(refusal(fixture.store.list_sessions(fixture.tenant, None, &bad).await), Code::InvalidArgument);
    assert_eq!(
        refusal(fixture.store.list_runs(fixture.tenant, &RunFilter::default(), &bad).await),
        Code::InvalidArgument
    );
    assert_eq!(refusal(fixture.store.list_queue(fixture.tenant, session, &bad).await), Code::InvalidArgument);
    assert_eq!(
        refusal(fixture.store.list_messages(fixture.tenant, session, &bad).await),
        Code::InvalidArgument
    );
    Ok(())
}
