//! One that cannot be seen to keeps nobody else waiting, and takes nothing back from whoever asked for more.

use anyhow::Result;
use remuda_domain::{
    RunState,
    budget::{Amount, Limit},
    run::ParkReason,
};
use remuda_store::{BudgetOf, Commit, Grant, NewChild, NewRun, NewSession, Parking, Reach, Then};

use crate::{
    family::{awaiting, child, making},
    lab::{LONG_LEASE, Lab, completed, ending},
    plans::execute,
};

const TITLE: &str = "stubborn";

/// A session of this title cannot be read any more, whatever is wanted of it.
async fn spoil(lab: &Lab) -> Result<()> {
    execute(lab, "UPDATE sessions SET pool = '' WHERE title = 'stubborn'").await
}

async fn mend(lab: &Lab) -> Result<()> {
    execute(lab, "UPDATE sessions SET pool = 'default' WHERE title = 'stubborn'").await
}

fn stubborn_child() -> NewChild {
    let mut made = child();
    if let Some(session) = &mut made.new_session {
        session.title = TITLE.into();
    }
    made
}

fn broke(grant: &Grant) -> Commit {
    let amount = Some(Amount { tokens: 200, micros: 0 });
    let parking = Parking { amount, ..Parking::on(ParkReason::Budget) };
    Commit::new(grant.fence, grant.run.id, Then::Park(parking))
}

pub(crate) async fn others_go_on(lab: &Lab) -> Result<()> {
    let worker = lab.worker(LONG_LEASE).await?;
    let mut parents = Vec::new();
    for title in [TITLE, "a title", "a title"] {
        let session = NewSession { title: title.into(), ..lab.new_session(None) };
        lab.store.create_session(&session).await?;
        lab.submit(session.id).await?;
        let grant = lab.granted(session.id, worker).await?;
        let children = [child()];
        lab.store.commit(Commit { children: children.to_vec(), ..awaiting(&grant, &children, 1) }).await?;
        lab.work_off(children[0].session).await?;
        parents.push(grant.run.id);
    }
    spoil(lab).await?;
    assert_eq!(lab.store.resume_ready(None, 10).await?.done.len(), 2);
    mend(lab).await?;
    assert_eq!(lab.state(parents[0]).await?, RunState::Parked);
    assert_eq!(lab.store.resume_ready(None, 10).await?.done.len(), 1);
    for run in parents {
        assert_eq!(lab.state(run).await?, RunState::Queued);
    }
    Ok(())
}

/// The run is cancelled: whoever asked hears so, and whom to tell, whatever becomes of those below.
pub(crate) async fn a_cancel_is_told(lab: &Lab) -> Result<()> {
    for by_session in [false, true] {
        let grant = lab.executing().await?;
        let children = [stubborn_child()];
        lab.store.commit(making(&grant, &children)).await?;
        spoil(lab).await?;
        if by_session {
            let session = grant.fence.session;
            let cancelled = lab.store.cancel_session(lab.tenant, session, Reach::Session, "enough").await?;
            assert_eq!(cancelled.requested.iter().map(|it| it.run).collect::<Vec<_>>(), [grant.run.id]);
        } else {
            let cancelled = lab.store.request_cancel(lab.tenant, grant.run.id, "enough").await?;
            assert_eq!(cancelled.signal, Some(grant.fence.worker));
            assert_eq!(cancelled.change.events.len(), 1);
        }
        mend(lab).await?;
        assert!(!lab.state(children[0].run).await?.is_terminal());
        // Whoever sees the end of the run sees to the rest.
        assert!(lab.store.commit(ending(&grant, RunState::Cancelled)).await?.has_children);
        let stopped = lab.store.cancel_children(lab.tenant, grant.run.id, "over").await?;
        assert_eq!(stopped.ended, [children[0].run]);
    }
    Ok(())
}

pub(crate) async fn other_orphans_are_stopped(lab: &Lab) -> Result<()> {
    let grant = lab.executing().await?;
    let children = [stubborn_child(), child()];
    lab.store.commit(making(&grant, &children)).await?;
    lab.store.commit(completed(&grant)).await?;
    spoil(lab).await?;
    let first = lab.store.stop_orphans(None, 1).await?;
    assert_eq!((first.done.ended.len(), first.next), (0, Some(children[0].run)));
    assert_eq!(lab.store.stop_orphans(first.next, 1).await?.done.ended, [children[1].run]);
    mend(lab).await?;
    assert_eq!(lab.store.stop_orphans(None, 1).await?.done.ended, [children[0].run]);
    Ok(())
}

pub(crate) async fn a_raise_reaches_the_others(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let limit = |tokens| Limit { tokens: Some(tokens), micros: None };
    lab.store.submit(NewRun { budget: Some(limit(100)), ..lab.new_run(session) }).await?;
    let worker = lab.worker(LONG_LEASE).await?;
    let root = lab.granted(session, worker).await?;
    let children = [stubborn_child(), child(), child()];
    lab.store.commit(making(&root, &children)).await?;
    for child in &children {
        let below = lab.granted(child.session, worker).await?;
        lab.store.commit(broke(&below)).await?;
    }
    spoil(lab).await?;
    let of = BudgetOf::Run(root.run.id);
    let raised = lab.store.set_budget(lab.tenant, of, limit(1000)).await?;
    let mut expected = [children[1].run, children[2].run];
    expected.sort();
    assert_eq!((raised.budget.limit, raised.resumed.as_slice()), (limit(1000), expected.as_slice()));
    assert_eq!(raised.changes.len(), 3);
    mend(lab).await?;
    assert_eq!(lab.store.resume_ready(None, 10).await?.done.len(), 1);
    lab.store.commit(completed(&root)).await?;
    Ok(())
}
