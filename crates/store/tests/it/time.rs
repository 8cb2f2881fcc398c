//! What waiting for children costs: the time that they work meanwhile, once.

use std::time::Duration;

use anyhow::{Context as _, Result};
use remuda_domain::{Run, RunState, Timestamp, run::ParkReason};
use remuda_store::{Commit, Grant, NewChild};

use crate::{
    family::{awaiting, child, making},
    lab::{LONG_LEASE, Lab, completed, parking},
};

/// Long enough to be told from what the store itself takes.
const A_WHILE: Duration = Duration::from_millis(120);
/// The databases' clocks, and rounding to milliseconds, a few times over.
const TOLERANCE: Duration = Duration::from_millis(5);

fn span(from: Timestamp, to: Timestamp) -> Duration {
    (to - from).to_std().unwrap_or_default()
}

/// How long a run that has ended worked.
fn work(run: &Run) -> Result<Duration> {
    Ok(span(run.started_at.context("no start")?, run.finished_at.context("no end")?) - run.paused)
}

fn near(found: Duration, expected: Duration) {
    assert!(found.abs_diff(expected) <= TOLERANCE, "{found:?} for {expected:?}");
}

impl Lab {
    /// Parks the run and says since when.
    async fn parked_at(&self, commit: Commit) -> Result<Timestamp> {
        let run = commit.run;
        self.store.commit(commit).await?;
        Ok(self.run(run).await?.parked.context("not parked")?.at)
    }

    /// Waits for a person for a while, and is somebody's again.
    async fn ask_around(&self, grant: &Grant) -> Result<Grant> {
        self.store.commit(parking(grant, ParkReason::Approval)).await?;
        tokio::time::sleep(A_WHILE).await;
        self.store.resume_run(self.tenant, grant.run.id).await?;
        self.granted(grant.fence.session, grant.fence.worker).await
    }

    /// Ends a child, and says when its parent went on.
    async fn end_child(&self, grant: &Grant, parent: &Grant) -> Result<Timestamp> {
        let ended = self.store.commit(completed(grant)).await?;
        let change = self.tell_parent(&ended).await?.context("the parent waits on")?;
        assert_eq!(change.session, parent.fence.session);
        Ok(change.events.last().context("no event")?.at)
    }
}

/// What children only waited for costs their parent no time, what they worked does.
pub(crate) async fn waiting_for_children_costs_what_they_work(lab: &Lab) -> Result<()> {
    let worked = Duration::from_millis(60);
    let grant = lab.executing().await?;
    let children = [child()];
    lab.store.commit(Commit { children: children.to_vec(), ..awaiting(&grant, &children, 1) }).await?;
    let parked = lab.run(grant.run.id).await?.parked.context("not parked")?;
    // A pause before the child starts, and one while it is parked itself.
    tokio::time::sleep(worked).await;
    let worker = lab.worker(LONG_LEASE).await?;
    let below = lab.granted(children[0].session, worker).await?;
    lab.store.commit(parking(&below, ParkReason::Approval)).await?;
    tokio::time::sleep(worked).await;
    lab.store.resume_run(lab.tenant, children[0].run).await?;
    let below = lab.granted(children[0].session, worker).await?;
    tokio::time::sleep(worked).await;
    let ended = lab.store.commit(completed(&below)).await?;
    lab.tell_parent(&ended).await?.context("the parent waits on")?;
    let (parent, child) = (lab.run(grant.run.id).await?, lab.run(children[0].run).await?);
    let active = (child.finished_at.context("no end")? - child.started_at.context("no start")?).to_std()?
        - child.paused;
    assert!(child.paused >= worked && active >= worked, "{child:?}");
    let events = lab.events_of(grant.fence.session).await?;
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

/// A child that is cancelled while it waits for a person has not worked all that time.
pub(crate) async fn a_parked_child_that_ends_did_not_work(lab: &Lab) -> Result<()> {
    let waited = Duration::from_millis(80);
    let grant = lab.executing().await?;
    let children = [child()];
    lab.store.commit(Commit { children: children.to_vec(), ..awaiting(&grant, &children, 1) }).await?;
    let below = lab.granted(children[0].session, lab.worker(LONG_LEASE).await?).await?;
    lab.store.commit(parking(&below, ParkReason::Approval)).await?;
    tokio::time::sleep(waited).await;
    lab.store.request_cancel(lab.tenant, children[0].run, "enough").await?;
    let parent = lab.run(grant.run.id).await?;
    assert!(lab.run(children[0].run).await?.paused >= waited);
    assert!(parent.paused >= waited && parent.state == RunState::Queued, "{parent:?}");
    Ok(())
}

/// What a child worked while its parent worked too is time that has passed for the parent already.
pub(crate) async fn work_beside_a_parent_is_no_wait(lab: &Lab) -> Result<()> {
    let grant = lab.executing().await?;
    let children = [child()];
    lab.store.commit(making(&grant, &children)).await?;
    let below = lab.granted(children[0].session, grant.fence.worker).await?;
    tokio::time::sleep(A_WHILE).await;
    let parked = lab.parked_at(awaiting(&grant, &children, 1)).await?;
    let below = lab.ask_around(&below).await?;
    let resumed = lab.end_child(&below, &grant).await?;
    let (parent, child) = (lab.run(grant.run.id).await?, lab.run(children[0].run).await?);
    let before = span(child.started_at.context("no start")?, parked);
    assert!(before >= A_WHILE);
    near(parent.paused, span(parked, resumed) - (work(&child)? - before));
    assert!(parent.paused >= A_WHILE);
    Ok(())
}

/// A parent that is woken for each of its children pays once for what another one works all the time.
pub(crate) async fn work_is_paid_for_once(lab: &Lab) -> Result<()> {
    let grant = lab.executing().await?;
    let (worker, session) = (grant.fence.worker, grant.fence.session);
    let children = [child(), child(), child()];
    lab.store.commit(making(&grant, &children)).await?;
    let long = lab.granted(children[0].session, worker).await?;
    let mut waited = Duration::ZERO;
    let mut grant = grant;
    for quick in &children[1..] {
        let parked = lab.parked_at(awaiting(&grant, &[children[0].clone(), quick.clone()], 1)).await?;
        tokio::time::sleep(A_WHILE).await;
        let quick = lab.granted(quick.session, worker).await?;
        waited += span(parked, lab.end_child(&quick, &grant).await?);
        grant = lab.granted(session, worker).await?;
    }
    // It worked all the time that the parent waited so far, and from here on only waits.
    near(lab.run(grant.run.id).await?.paused, Duration::ZERO);
    let parked = lab.parked_at(awaiting(&grant, &children[..1], 1)).await?;
    let long = lab.ask_around(&long).await?;
    let resumed = lab.end_child(&long, &grant).await?;
    let (parent, child) = (lab.run(grant.run.id).await?, lab.run(children[0].run).await?);
    let before = span(child.started_at.context("no start")?, parked);
    assert!(before >= waited && waited >= A_WHILE * 2);
    near(parent.paused, span(parked, resumed) - (work(&child)? - before));
    Ok(())
}

/// The same one level further down: who waits for children works through them, also for those who wait for it.
pub(crate) async fn work_below_a_child_is_work_of_the_child(lab: &Lab) -> Result<()> {
    let grant = lab.executing().await?;
    let worker = grant.fence.worker;
    let (children, lower) = ([child()], [child()]);
    lab.store.commit(making(&grant, &children)).await?;
    let middle = lab.granted(children[0].session, worker).await?;
    let waiting: fn(&Grant, &[NewChild]) -> Commit =
        |grant, children| Commit { children: children.to_vec(), ..awaiting(grant, children, 1) };
    let middle_parked = lab.parked_at(waiting(&middle, &lower)).await?;
    let lowest = lab.granted(lower[0].session, worker).await?;
    tokio::time::sleep(A_WHILE).await;
    let parked = lab.parked_at(awaiting(&grant, &children, 1)).await?;
    let lowest = lab.ask_around(&lowest).await?;
    lab.end_child(&lowest, &middle).await?;
    let middle = lab.granted(children[0].session, worker).await?;
    let resumed = lab.end_child(&middle, &grant).await?;
    let (parent, lowest) = (lab.run(grant.run.id).await?, lab.run(lower[0].run).await?);
    let middle = lab.run(children[0].run).await?;
    let by_itself = span(middle.started_at.context("no start")?, middle_parked);
    let through_its_child = span(lowest.started_at.context("no start")?, parked);
    assert!(through_its_child >= A_WHILE);
    near(parent.paused, span(parked, resumed) - (work(&middle)? - by_itself - through_its_child));
    assert!(parent.paused >= A_WHILE);
    Ok(())
}
