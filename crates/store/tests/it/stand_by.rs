//! Workers that are granted a session with the submit of its first run, without a token.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result};
use remuda_domain::{Pool, RunId, RunState, SessionId, WorkerId};
use remuda_store::{Grant, Heartbeat, NewSession, Seat, Seats, Unheld};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::lab::{LONG_LEASE, Lab, SHORT_LEASE, completed};

/// A worker with some slots, which is told what it was granted.
#[derive(Debug)]
struct Room {
    worker: WorkerId,
    slots: Arc<Semaphore>,
    granted: mpsc::UnboundedSender<(Box<Grant>, OwnedSemaphorePermit)>,
    /// Let go of only later.
    in_hand: Mutex<Vec<SessionId>>,
}

struct Place {
    worker: WorkerId,
    slot: OwnedSemaphorePermit,
    granted: mpsc::UnboundedSender<(Box<Grant>, OwnedSemaphorePermit)>,
}

impl Room {
    fn in_hand(&self) -> MutexGuard<'_, Vec<SessionId>> {
        self.in_hand.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seats for Room {
    fn seat(&self, pool: &Pool, session: SessionId) -> Option<Box<dyn Seat>> {
        if self.in_hand().contains(&session) || *pool != Pool::default() {
            return None;
        }
        let slot = Arc::clone(&self.slots).try_acquire_owned().ok()?;
        Some(Box::new(Place { worker: self.worker, slot, granted: self.granted.clone() }))
    }
}

impl Seat for Place {
    fn worker(&self) -> WorkerId {
        self.worker
    }

    fn take(self: Box<Self>, grant: Box<Grant>) {
        self.granted.send((grant, self.slot)).ok();
    }
}

type Granted = mpsc::UnboundedReceiver<(Box<Grant>, OwnedSemaphorePermit)>;

fn standing(lab: &Lab, worker: WorkerId, slots: usize) -> (Arc<Room>, Granted) {
    let (granted, receiver) = mpsc::unbounded_channel();
    let slots = Arc::new(Semaphore::new(slots));
    let room = Arc::new(Room { worker, slots, granted, in_hand: Mutex::default() });
    let seats: Arc<dyn Seats> = room.clone();
    lab.store.stand_by(Arc::downgrade(&seats));
    (room, receiver)
}

pub(crate) async fn a_first_run_is_granted_with_its_submit(lab: &Lab) -> Result<()> {
    let worker = lab.worker(LONG_LEASE).await?;
    let (room, mut granted) = standing(lab, worker, 2);
    let session = lab.session().await?;
    let first = lab.submit(session).await?;
    assert!(!first.wake && first.run.state == RunState::Queued);
    let (grant, slot) = granted.recv().await.context("nothing was granted")?;
    assert_eq!((grant.run.id, grant.run.attempt, grant.run.state), (first.run.id, 1, RunState::Running));
    assert_eq!((grant.fence.worker, grant.fence.epoch, grant.fence.session), (worker, 1, session));
    assert_eq!((grant.workspace_root.as_str(), grant.run.input.clone()), ("/srv/root", first.run.input));
    assert_eq!(room.slots.available_permits(), 1);
    let running = lab.run(first.run.id).await?;
    assert_eq!((running.state, running.attempt), (RunState::Running, 1));
    assert_eq!(running.started_at, grant.run.started_at);
    let seen = lab.look(session).await?;
    assert_eq!((seen.owner, seen.current, seen.epoch), (Some(worker), Some(first.run.id), 1));

    // The next one is its owner's, who hears of it with the end of the first.
    let second = lab.submit(session).await?;
    assert!(!second.wake && granted.try_recv().is_err());
    let committed = lab.store.commit(completed(&grant)).await?;
    let next = committed.next.context("the second run waits")?;
    assert_eq!(next.run.id, second.run.id);
    assert!(lab.store.commit(completed(&next)).await?.released);
    drop(slot);
    lab.check(session).await
}

pub(crate) async fn runs_that_come_together_stay_in_order(lab: &Lab) -> Result<()> {
    let worker = lab.worker(LONG_LEASE).await?;
    let (_room, mut granted) = standing(lab, worker, 4);
    for _ in 0..20 {
        let session = lab.session().await?;
        let submits = (0..5).map(|_| lab.submit(session));
        let submitted = futures::future::try_join_all(submits).await?;
        let woken = submitted.iter().filter(|it| it.wake).count();
        // Several of one session at once go the usual way on PostgreSQL.
        assert!(woken == 0 || (woken == 5 && lab.is_postgres()), "a token would find an owner");
        let (mut grant, slot) = match woken {
            0 => granted
                .recv()
                .await
                .map(|(grant, slot)| (grant, Some(slot)))
                .context("nothing was granted")?,
            _ => (Box::new(lab.granted(session, worker).await?), None),
        };
        let mut seqs = vec![grant.run.seq];
        while let Some(next) = lab.store.commit(completed(&grant)).await?.next {
            seqs.push(next.run.seq);
            grant = next;
        }
        assert_eq!(seqs, [1, 2, 3, 4, 5]);
        drop(slot);
        lab.check(session).await?;
    }
    Ok(())
}

pub(crate) async fn who_cannot_take_it_is_not_granted_it(lab: &Lab) -> Result<()> {
    let worker = lab.worker(LONG_LEASE).await?;
    let (room, mut granted) = standing(lab, worker, 1);
    let is_granted = async || anyhow::Ok(!lab.submit(lab.session().await?).await?.wake);
    // All slots are in use, or the worker still has the session in hand.
    let taken = Arc::clone(&room.slots).try_acquire_owned()?;
    assert!(!is_granted().await?);
    drop(taken);
    let session = lab.session().await?;
    room.in_hand().push(session);
    assert!(lab.submit(session).await?.wake);
    assert!(is_granted().await?);
    drop(granted.recv().await.context("nothing was granted")?);
    // What waits already is first in line.
    room.in_hand().clear();
    assert!(lab.submit(session).await?.wake);
    // Another pool, a key that has to be remembered.
    let elsewhere = NewSession { pool: "gpu".parse()?, ..lab.new_session(None) };
    let elsewhere = lab.store.create_session(&elsewhere).await?.value.id;
    assert!(lab.submit(elsewhere).await?.wake);
    let keyed = lab.keyed_run(lab.session().await?, "key", 1);
    assert!(lab.store.submit(keyed).await?.wake, "it goes the usual way");
    // A worker whose lease has ended, and one that is gone.
    let lapsed = lab.worker(SHORT_LEASE).await?;
    let (late, _granted) = standing(lab, lapsed, 1);
    lab.outlive(lapsed).await;
    assert!(!is_granted().await?);
    drop(late);
    let (gone, _granted) = standing(lab, worker, 1);
    drop(gone);
    assert!(!is_granted().await?);
    Ok(())
}

/// What was granted may not have come to its owner, who has to be told.
pub(crate) async fn what_an_owner_does_not_know_of_is_found(lab: &Lab) -> Result<()> {
    let owner = lab.worker(LONG_LEASE).await?;
    let lapsed = lab.worker(SHORT_LEASE).await?;
    let (_room, mut granted) = standing(lab, owner, 3);
    let mut sessions = Vec::new();
    for _ in 0..3 {
        sessions.push(lab.session().await?);
    }
    let (mut runs, mut in_use) = (Vec::new(), Vec::new());
    for session in &sessions {
        runs.push(lab.submit(*session).await?.run.id);
        in_use.push(granted.recv().await.context("nothing was granted")?);
    }
    let others = lab.session().await?;
    lab.submit(others).await?;
    lab.granted(others, lapsed).await?;
    let waiting = lab.session().await?;
    let submitted = lab.submit(waiting).await?;
    assert!(submitted.wake);
    let now = Duration::ZERO;
    let found = async || anyhow::Ok(lab.store.unheld_sessions(None, 100, now).await?.sessions);
    assert_eq!(found().await?, [], "no heartbeat came since");
    let beat = |running: &[RunId]| {
        let beat = Heartbeat { worker: owner, lease: LONG_LEASE, running: running.to_vec() };
        async move { lab.store.renew_lease(&beat).await }
    };
    beat(&[runs[1]]).await?;
    lab.outlive(lapsed).await;
    let unheld = |session: &SessionId| Unheld { tenant: lab.tenant, session: *session, owner };
    let mut expected = [unheld(&sessions[0]), unheld(&sessions[2])];
    expected.sort_unstable_by_key(|it| it.session.as_uuid());
    assert_eq!(found().await?, expected);
    assert_eq!(lab.store.unheld_sessions(None, 100, LONG_LEASE).await?.sessions, [], "it may be on its way");
    // A page at a time, through all that has work.
    let (mut after, mut all, mut pages) = (None, Vec::new(), 0);
    loop {
        let page = lab.store.unheld_sessions(after, 2, now).await?;
        all.extend(page.sessions);
        pages += 1;
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!((all, pages), (expected.to_vec(), 3));
    beat(&runs).await?;
    assert_eq!(found().await?, []);
    Ok(())
}
