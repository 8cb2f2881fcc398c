//! A corrupt session does not block scans over others, and does not undo a committed change.

use anyhow::Result;
use remuda_domain::{
    RunState,
    budget::{Amount, Limit},
    run::ParkReason,
};
use remuda_store::{
    BudgetTarget, CancelScope, Commit, Grant, NewChild, NewRun, NewSession, ParkRequest, RunTransition,
};

use crate::{
    fixture::{Fixture, LONG_LEASE, completed, ending},
    query_plans::execute,
    tree_helpers::{child, creating_children, parked_for_children},
};

const TITLE: &str = "corrupt";

/// Makes the sessions with this title unreadable.
async fn corrupt(fixture: &Fixture) -> Result<()> {
    execute(fixture, "UPDATE sessions SET pool = '' WHERE title = 'corrupt'").await
}

async fn repair(fixture: &Fixture) -> Result<()> {
    execute(fixture, "UPDATE sessions SET pool = 'default' WHERE title = 'corrupt'").await
}

fn corrupt_child() -> NewChild {
    let mut made = child();
    if let Some(session) = &mut made.new_session {
        session.title = TITLE.into();
    }
    made
}

fn parked_for_budget(grant: &Grant) -> Commit {
    let amount = Some(Amount { tokens: 200, micros: 0 });
    let parking = ParkRequest { amount, ..ParkRequest::on(ParkReason::Budget) };
    Commit::new(grant.fence, grant.run.id, RunTransition::Park(parking))
}

pub(crate) async fn corrupt_session_does_not_block_other_resumes(fixture: &Fixture) -> Result<()> {
    let worker = fixture.worker(LONG_LEASE).await?;
    let mut parents = Vec::new();
    for title in [TITLE, "a title", "a title"] {
        let session = NewSession { title: title.into(), ..fixture.new_session(None) };
        fixture.store.create_session(&session).await?;
        fixture.submit(session.id).await?;
        let grant = fixture.granted(session.id, worker).await?;
        let children = [child()];
        fixture
            .store
            .commit(Commit { children: children.to_vec(), ..parked_for_children(&grant, &children, 1) })
            .await?;
        fixture.execute_head_run(children[0].run.session).await?;
        parents.push(grant.run.id);
    }
    corrupt(fixture).await?;
    assert_eq!(fixture.store.resume_ready(None, 10).await?.result.len(), 2);
    repair(fixture).await?;
    assert_eq!(fixture.state(parents[0]).await?, RunState::Parked);
    assert_eq!(fixture.store.resume_ready(None, 10).await?.result.len(), 1);
    for run in parents {
        assert_eq!(fixture.state(run).await?, RunState::Queued);
    }
    Ok(())
}

/// The cancellation is committed: the caller gets its result and the signals, whatever happens to the descendants.
pub(crate) async fn cancel_succeeds_although_a_descendant_is_corrupt(fixture: &Fixture) -> Result<()> {
    for by_session in [false, true] {
        let grant = fixture.executing().await?;
        let children = [corrupt_child()];
        fixture.store.commit(creating_children(&grant, &children)).await?;
        corrupt(fixture).await?;
        if by_session {
            let session = grant.fence.session;
            let cancelled =
                fixture.store.cancel_session(fixture.tenant, session, CancelScope::Session, "enough").await?;
            assert_eq!(cancelled.requested.iter().map(|it| it.run).collect::<Vec<_>>(), [grant.run.id]);
        } else {
            let cancelled = fixture.store.request_cancel(fixture.tenant, grant.run.id, "enough").await?;
            assert_eq!(cancelled.signal, Some(grant.fence.worker));
            assert_eq!(cancelled.change.events.len(), 1);
        }
        repair(fixture).await?;
        assert!(!fixture.state(children[0].run.id).await?.is_terminal());
        // The worker that ends the run cancels the rest.
        assert!(fixture.store.commit(ending(&grant, RunState::Cancelled)).await?.has_children);
        let stopped = fixture.store.cancel_children(fixture.tenant, grant.run.id, "over").await?;
        assert_eq!(stopped.ended, [children[0].run.id]);
    }
    Ok(())
}

pub(crate) async fn corrupt_session_does_not_block_the_cancellation_of_other_orphans(
    fixture: &Fixture,
) -> Result<()> {
    let grant = fixture.executing().await?;
    let children = [corrupt_child(), child()];
    fixture.store.commit(creating_children(&grant, &children)).await?;
    fixture.store.commit(completed(&grant)).await?;
    corrupt(fixture).await?;
    let first = fixture.store.stop_orphans(None, 1).await?;
    assert_eq!((first.result.ended.len(), first.next), (0, Some(children[0].run.id)));
    assert_eq!(fixture.store.stop_orphans(first.next, 1).await?.result.ended, [children[1].run.id]);
    repair(fixture).await?;
    assert_eq!(fixture.store.stop_orphans(None, 1).await?.result.ended, [children[0].run.id]);
    Ok(())
}

pub(crate) async fn corrupt_session_does_not_block_other_runs_after_a_raise(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let limit = |tokens| Limit { tokens: Some(tokens), micros: None };
    fixture.store.submit(NewRun { budget: Some(limit(100)), ..fixture.new_run(session) }).await?;
    let worker = fixture.worker(LONG_LEASE).await?;
    let root = fixture.granted(session, worker).await?;
    let children = [corrupt_child(), child(), child()];
    fixture.store.commit(creating_children(&root, &children)).await?;
    for child in &children {
        let below = fixture.granted(child.run.session, worker).await?;
        fixture.store.commit(parked_for_budget(&below)).await?;
    }
    corrupt(fixture).await?;
    let of = BudgetTarget::Run(root.run.id);
    let raised = fixture.store.set_budget(fixture.tenant, of, limit(1000)).await?;
    let mut expected = [children[1].run.id, children[2].run.id];
    expected.sort();
    assert_eq!((raised.budget.limit, raised.resumed.as_slice()), (limit(1000), expected.as_slice()));
    assert_eq!(raised.changes.len(), 3);
    repair(fixture).await?;
    assert_eq!(fixture.store.resume_ready(None, 10).await?.result.len(), 1);
    fixture.store.commit(completed(&root)).await?;
    Ok(())
}
