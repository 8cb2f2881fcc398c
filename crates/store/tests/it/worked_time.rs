//! Waiting for children uses the time that they work meanwhile, once.

use std::time::Duration;

use anyhow::{Context as _, Result};
use remuda_domain::{Run, RunState, Timestamp, run::ParkReason};
use remuda_store::{Commit, Grant, NewChild};

use crate::{
    fixture::{Fixture, LONG_LEASE, completed, parking},
    tree_helpers::{child, creating_children, parked_for_children},
};

/// Long enough to be distinguishable from the store's own latency.
const PAUSE: Duration = Duration::from_millis(120);
/// Covers clock differences and repeated rounding to milliseconds.
const TOLERANCE: Duration = Duration::from_millis(5);

fn span(from: Timestamp, to: Timestamp) -> Duration {
    (to - from).to_std().unwrap_or_default()
}

/// The execution time of an ended run.
fn worked(run: &Run) -> Result<Duration> {
    Ok(span(run.started_at.context("no start")?, run.finished_at.context("no end")?) - run.paused)
}

fn assert_close(found: Duration, expected: Duration) {
    assert!(found.abs_diff(expected) <= TOLERANCE, "{found:?} for {expected:?}");
}

impl Fixture {
    /// Parks the run and returns when.
    async fn parked_at(&self, commit: Commit) -> Result<Timestamp> {
        let run = commit.run;
        self.store.commit(commit).await?;
        Ok(self.run(run).await?.parked.context("not parked")?.at)
    }

    /// Waits for an approval for a while, and is granted again.
    async fn wait_for_approval(&self, grant: &Grant) -> Result<Grant> {
        self.store.commit(parking(grant, ParkReason::Approval)).await?;
        tokio::time::sleep(PAUSE).await;
        self.store.resume_run(self.tenant, grant.run.id).await?;
        self.granted(grant.fence.session, grant.fence.worker).await
    }

    /// Ends a child, and returns when its parent resumed.
    async fn end_child(&self, grant: &Grant, parent: &Grant) -> Result<Timestamp> {
        let ended = self.store.commit(completed(grant)).await?;
        let change = self.resume_parent(&ended).await?.context("the parent waits on")?;
        assert_eq!(change.session, parent.fence.session);
        Ok(change.events.last().context("no event")?.at)
    }
}

/// Time that children spend waiting costs their parent nothing; time that they work does.
pub(crate) async fn waiting_for_children_uses_only_the_time_they_work(fixture: &Fixture) -> Result<()> {
    let worked = Duration::from_millis(60);
    let grant = fixture.executing().await?;
    let children = [child()];
    fixture
        .store
        .commit(Commit { children: children.to_vec(), ..parked_for_children(&grant, &children, 1) })
        .await?;
    let parked = fixture.run(grant.run.id).await?.parked.context("not parked")?;
    // A pause before the child starts, and one while it is parked itself.
    tokio::time::sleep(worked).await;
    let worker = fixture.worker(LONG_LEASE).await?;
    let below = fixture.granted(children[0].run.session, worker).await?;
    fixture.store.commit(parking(&below, ParkReason::Approval)).await?;
    tokio::time::sleep(worked).await;
    fixture.store.resume_run(fixture.tenant, children[0].run.id).await?;
    let below = fixture.granted(children[0].run.session, worker).await?;
    tokio::time::sleep(worked).await;
    let ended = fixture.store.commit(completed(&below)).await?;
    fixture.resume_parent(&ended).await?.context("the parent waits on")?;
    let (parent, child) = (fixture.run(grant.run.id).await?, fixture.run(children[0].run.id).await?);
    let active = (child.finished_at.context("no end")? - child.started_at.context("no start")?).to_std()?
        - child.paused;
    assert!(child.paused >= worked && active >= worked, "{child:?}");
    let events = fixture.events_of(grant.fence.session).await?;
    let resumed = events.last().context("no event")?.at;
    let expected = (resumed - parked.at).to_std()?.saturating_sub(active);
    assert!(
        parent.paused.abs_diff(expected) <= Duration::from_millis(3),
        "{:?} for {expected:?}",
        parent.paused
    );
    assert!(parent.paused >= worked * 2);
    Ok(())
}

/// A child that is cancelled while it waits for an approval did not work all that time.
pub(crate) async fn time_of_a_cancelled_parked_child_does_not_count(fixture: &Fixture) -> Result<()> {
    let waited = Duration::from_millis(80);
    let grant = fixture.executing().await?;
    let children = [child()];
    fixture
        .store
        .commit(Commit { children: children.to_vec(), ..parked_for_children(&grant, &children, 1) })
        .await?;
    let below = fixture.granted(children[0].run.session, fixture.worker(LONG_LEASE).await?).await?;
    fixture.store.commit(parking(&below, ParkReason::Approval)).await?;
    tokio::time::sleep(waited).await;
    fixture.store.request_cancel(fixture.tenant, children[0].run.id, "enough").await?;
    let parent = fixture.run(grant.run.id).await?;
    assert!(fixture.run(children[0].run.id).await?.paused >= waited);
    assert!(parent.paused >= waited && parent.state == RunState::Queued, "{parent:?}");
    Ok(())
}

/// Work of a child during its parent's own work is not counted again.
pub(crate) async fn child_work_during_the_parents_work_is_not_counted_again(fixture: &Fixture) -> Result<()> {
    let grant = fixture.executing().await?;
    let children = [child()];
    fixture.store.commit(creating_children(&grant, &children)).await?;
    let below = fixture.granted(children[0].run.session, grant.fence.worker).await?;
    tokio::time::sleep(PAUSE).await;
    let parked = fixture.parked_at(parked_for_children(&grant, &children, 1)).await?;
    let below = fixture.wait_for_approval(&below).await?;
    let resumed = fixture.end_child(&below, &grant).await?;
    let (parent, child) = (fixture.run(grant.run.id).await?, fixture.run(children[0].run.id).await?);
    let before = span(child.started_at.context("no start")?, parked);
    assert!(before >= PAUSE);
    assert_close(parent.paused, span(parked, resumed) - (worked(&child)? - before));
    assert!(parent.paused >= PAUSE);
    Ok(())
}

/// A parent that resumes after each child is charged once for a child that works all the time.
pub(crate) async fn child_work_over_several_waits_is_counted_once(fixture: &Fixture) -> Result<()> {
    let grant = fixture.executing().await?;
    let (worker, session) = (grant.fence.worker, grant.fence.session);
    let children = [child(), child(), child()];
    fixture.store.commit(creating_children(&grant, &children)).await?;
    let long = fixture.granted(children[0].run.session, worker).await?;
    let mut waited = Duration::ZERO;
    let mut grant = grant;
    for quick in &children[1..] {
        let parked =
            fixture.parked_at(parked_for_children(&grant, &[children[0].clone(), quick.clone()], 1)).await?;
        tokio::time::sleep(PAUSE).await;
        let quick = fixture.granted(quick.run.session, worker).await?;
        waited += span(parked, fixture.end_child(&quick, &grant).await?);
        grant = fixture.granted(session, worker).await?;
    }
    // It has worked for as long as the parent has waited, and from now on only waits.
    assert_close(fixture.run(grant.run.id).await?.paused, Duration::ZERO);
    let parked = fixture.parked_at(parked_for_children(&grant, &children[..1], 1)).await?;
    let long = fixture.wait_for_approval(&long).await?;
    let resumed = fixture.end_child(&long, &grant).await?;
    let (parent, child) = (fixture.run(grant.run.id).await?, fixture.run(children[0].run.id).await?);
    let before = span(child.started_at.context("no start")?, parked);
    assert!(before >= waited && waited >= PAUSE * 2);
    assert_close(parent.paused, span(parked, resumed) - (worked(&child)? - before));
    Ok(())
}

/// The same one level deeper: a run that waits for children counts as working through them, for its own parent too.
pub(crate) async fn work_of_grandchildren_counts_as_work_of_the_child(fixture: &Fixture) -> Result<()> {
    let grant = fixture.executing().await?;
    let worker = grant.fence.worker;
    let (children, lower) = ([child()], [child()]);
    fixture.store.commit(creating_children(&grant, &children)).await?;
    let middle = fixture.granted(children[0].run.session, worker).await?;
    let waiting: fn(&Grant, &[NewChild]) -> Commit =
        |grant, children| Commit { children: children.to_vec(), ..parked_for_children(grant, children, 1) };
    let middle_parked = fixture.parked_at(waiting(&middle, &lower)).await?;
    let lowest = fixture.granted(lower[0].run.session, worker).await?;
    tokio::time::sleep(PAUSE).await;
    let parked = fixture.parked_at(parked_for_children(&grant, &children, 1)).await?;
    let lowest = fixture.wait_for_approval(&lowest).await?;
    fixture.end_child(&lowest, &middle).await?;
    let middle = fixture.granted(children[0].run.session, worker).await?;
    let resumed = fixture.end_child(&middle, &grant).await?;
    let (parent, lowest) = (fixture.run(grant.run.id).await?, fixture.run(lower[0].run.id).await?);
    let middle = fixture.run(children[0].run.id).await?;
    let by_itself = span(middle.started_at.context("no start")?, middle_parked);
    let through_its_child = span(lowest.started_at.context("no start")?, parked);
    assert!(through_its_child >= PAUSE);
    assert_close(parent.paused, span(parked, resumed) - (worked(&middle)? - by_itself - through_its_child));
    assert!(parent.paused >= PAUSE);
    Ok(())
}
