//! Lists in pages.

use std::collections::HashSet;

use anyhow::Result;
use remuda_domain::{Code, RunState, page::PageRequest};
use remuda_store::RunFilter;

use crate::lab::{LONG_LEASE, Lab, completed, page, refusal};

pub(crate) async fn sessions_come_newest_first_and_pages_survive_inserts(lab: &Lab) -> Result<()> {
    let mut made = Vec::new();
    for _ in 0..10 {
        made.push(lab.session().await?);
    }
    let mut seen = Vec::new();
    let mut request = page(3);
    loop {
        let got = lab.store.list_sessions(lab.tenant, None, &request).await?;
        assert!(got.items.len() <= 3);
        seen.extend(got.items.into_iter().map(|session| session.id));
        // A newer session must neither shift nor join the pages that follow.
        lab.session().await?;
        request.token = got.next;
        if request.token.is_none() {
            break;
        }
    }
    made.reverse();
    assert_eq!(seen, made);
    let exact = lab.store.list_sessions(lab.tenant, None, &page(14)).await?;
    assert_eq!((exact.items.len(), exact.next), (14, None));
    Ok(())
}

pub(crate) async fn runs_are_filtered_and_paged(lab: &Lab) -> Result<()> {
    let (one, two) = (lab.session().await?, lab.session().await?);
    let mut ids = Vec::new();
    for session in [one, one, one, two] {
        ids.push(lab.submit(session).await?.run.id);
    }
    let worker = lab.worker(LONG_LEASE).await?;
    let grant = lab.granted(one, worker).await?;
    lab.store.commit(completed(&grant)).await?;
    // Now of session one: completed, running, queued; of session two: queued.
    let of = async |session, states: &[RunState]| -> Result<Vec<_>> {
        let filter = RunFilter { session, states: states.to_vec() };
        let got = lab.store.list_runs(lab.tenant, &filter, &page(10)).await?;
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
        let got = lab.store.list_runs(lab.tenant, &RunFilter::default(), &request).await?;
        assert!(seen.insert(got.items[0].id));
        assert_eq!(got.next.is_none(), seen.len() == 4);
        request.token = got.next;
    }
    let stranger = lab.stranger().await?;
    let filter = RunFilter { session: Some(one), states: Vec::new() };
    assert_eq!(lab.store.list_runs(stranger, &filter, &page(10)).await?.items, []);
    Ok(())
}

pub(crate) async fn a_queue_is_paged_in_order(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(lab.submit(session).await?.run.id);
    }
    let worker = lab.worker(LONG_LEASE).await?;
    let grant = lab.granted(session, worker).await?;
    lab.store.commit(completed(&grant)).await?;
    let first = lab.store.list_queue(lab.tenant, session, &page(2)).await?;
    let rest = PageRequest { size: 2, token: first.next };
    let second = lab.store.list_queue(lab.tenant, session, &rest).await?;
    let queue: Vec<_> = first.items.iter().chain(&second.items).map(|run| (run.id, run.state)).collect();
    let queued = RunState::Queued;
    assert_eq!(queue, [(ids[1], RunState::Running), (ids[2], queued), (ids[3], queued), (ids[4], queued)]);
    assert_eq!(second.next, None);
    Ok(())
}

pub(crate) async fn a_bad_page_token_is_named(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let bad = PageRequest { size: 5, token: Some("'; DROP TABLE runs; --".into()) };
    assert_eq!(refusal(lab.store.list_sessions(lab.tenant, None, &bad).await), Code::InvalidArgument);
    assert_eq!(
        refusal(lab.store.list_runs(lab.tenant, &RunFilter::default(), &bad).await),
        Code::InvalidArgument
    );
    assert_eq!(refusal(lab.store.list_queue(lab.tenant, session, &bad).await), Code::InvalidArgument);
    assert_eq!(refusal(lab.store.list_messages(lab.tenant, session, &bad).await), Code::InvalidArgument);
    Ok(())
}
