//! Grants in the submit transaction, without a token.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use parking_lot::{Mutex, MutexGuard};
use remuda_domain::{Pool, RunId, RunState, SessionId, WorkerId};
use remuda_store::{Grant, Heartbeat, LostGrant, NewSession, SlotProvider, SlotReservation};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::fixture::{Fixture, LONG_LEASE, SHORT_LEASE, completed};

/// A slot provider for one worker; sends assigned grants to a channel.
#[derive(Debug)]
struct FakeSlotProvider {
    worker: WorkerId,
    slots: Arc<Semaphore>,
    granted: mpsc::UnboundedSender<(Box<Grant>, OwnedSemaphorePermit)>,
    /// Sessions that the worker has not released yet.
    active_sessions: Mutex<Vec<SessionId>>,
}

struct FakeReservation {
    worker: WorkerId,
    slot: OwnedSemaphorePermit,
    granted: mpsc::UnboundedSender<(Box<Grant>, OwnedSemaphorePermit)>,
}

impl FakeSlotProvider {
    fn active_sessions(&self) -> MutexGuard<'_, Vec<SessionId>> {
        self.active_sessions.lock()
    }
}

impl SlotProvider for FakeSlotProvider {
    fn reserve_slot(&self, pool: &Pool, session: SessionId) -> Option<Box<dyn SlotReservation>> {
        if self.active_sessions().contains(&session) || *pool != Pool::default() {
            return None;
        }
        let slot = Arc::clone(&self.slots).try_acquire_owned().ok()?;
        Some(Box::new(FakeReservation { worker: self.worker, slot, granted: self.granted.clone() }))
    }
}

impl SlotReservation for FakeReservation {
    fn worker(&self) -> WorkerId {
        self.worker
    }

    fn assign(self: Box<Self>, grant: Box<Grant>) {
        self.granted.send((grant, self.slot)).ok();
    }
}

type Granted = mpsc::UnboundedReceiver<(Box<Grant>, OwnedSemaphorePermit)>;

fn register_provider(fixture: &Fixture, worker: WorkerId, slots: usize) -> (Arc<FakeSlotProvider>, Granted) {
    let (granted, receiver) = mpsc::unbounded_channel();
    let slots = Arc::new(Semaphore::new(slots));
    let provider = Arc::new(FakeSlotProvider { worker, slots, granted, active_sessions: Mutex::default() });
    let provider_of_store: Arc<dyn SlotProvider> = provider.clone();
    fixture.slots.set(Arc::downgrade(&provider_of_store));
    (provider, receiver)
}

pub(crate) async fn first_run_is_granted_in_its_submit(fixture: &Fixture) -> Result<()> {
    let worker = fixture.worker(LONG_LEASE).await?;
    let (provider, mut granted) = register_provider(fixture, worker, 2);
    let session = fixture.session().await?;
    let first = fixture.submit(session).await?;
    assert!(!first.change.wake && first.run.state == RunState::Queued);
    let (grant, slot) = granted.recv().await.context("nothing was granted")?;
    assert_eq!((grant.run.id, grant.run.attempt, grant.run.state), (first.run.id, 1, RunState::Running));
    assert_eq!((grant.fence.worker, grant.fence.epoch, grant.fence.session), (worker, 1, session));
    assert_eq!((grant.workspace_root.as_str(), grant.run.input.clone()), ("/srv/root", first.run.input));
    assert_eq!(provider.slots.available_permits(), 1);
    let running = fixture.run(first.run.id).await?;
    assert_eq!((running.state, running.attempt), (RunState::Running, 1));
    assert_eq!(running.started_at, grant.run.started_at);
    let seen = fixture.get_session(session).await?;
    assert_eq!((seen.owner, seen.current, seen.epoch), (Some(worker), Some(first.run.id), 1));

    // The next run belongs to the owner, which gets it with the end of the first.
    let second = fixture.submit(session).await?;
    assert!(!second.change.wake && granted.try_recv().is_err());
    let committed = fixture.store.commit(completed(&grant)).await?;
    let next = committed.next.context("the second run waits")?;
    assert_eq!(next.run.id, second.run.id);
    assert!(fixture.store.commit(completed(&next)).await?.released);
    drop(slot);
    fixture.check(session).await
}

pub(crate) async fn concurrently_submitted_runs_are_executed_in_order(fixture: &Fixture) -> Result<()> {
    let worker = fixture.worker(LONG_LEASE).await?;
    let (_provider, mut granted) = register_provider(fixture, worker, 4);
    for _ in 0..20 {
        let session = fixture.session().await?;
        let submits = (0..5).map(|_| fixture.submit(session));
        let submitted = futures::future::try_join_all(submits).await?;
        let woken = submitted.iter().filter(|it| it.change.wake).count();
        // Several concurrent runs of one session take the regular path on PostgreSQL.
        assert!(woken == 0 || (woken == 5 && fixture.is_postgres()), "a token would find an owner");
        let (mut grant, slot) = match woken {
            0 => granted
                .recv()
                .await
                .map(|(grant, slot)| (grant, Some(slot)))
                .context("nothing was granted")?,
            _ => (Box::new(fixture.granted(session, worker).await?), None),
        };
        let mut seqs = vec![grant.run.seq];
        while let Some(next) = fixture.store.commit(completed(&grant)).await?.next {
            seqs.push(next.run.seq);
            grant = next;
        }
        assert_eq!(seqs, [1, 2, 3, 4, 5]);
        drop(slot);
        fixture.check(session).await?;
    }
    Ok(())
}

pub(crate) async fn submit_grants_nothing_without_an_eligible_slot(fixture: &Fixture) -> Result<()> {
    let worker = fixture.worker(LONG_LEASE).await?;
    let (provider, mut granted) = register_provider(fixture, worker, 1);
    let is_granted = async || anyhow::Ok(!fixture.submit(fixture.session().await?).await?.change.wake);
    // All slots are in use, or the worker is still active on the session.
    let taken = Arc::clone(&provider.slots).try_acquire_owned()?;
    assert!(!is_granted().await?);
    drop(taken);
    let session = fixture.session().await?;
    provider.active_sessions().push(session);
    assert!(fixture.submit(session).await?.change.wake);
    assert!(is_granted().await?);
    drop(granted.recv().await.context("nothing was granted")?);
    // Runs that are already queued come first.
    provider.active_sessions().clear();
    assert!(fixture.submit(session).await?.change.wake);
    // Another pool, or an idempotency key.
    let elsewhere = NewSession { pool: "gpu".parse()?, ..fixture.new_session(None) };
    let elsewhere = fixture.store.create_session(&elsewhere).await?.value.id;
    assert!(fixture.submit(elsewhere).await?.change.wake);
    let keyed = fixture.keyed_run(fixture.session().await?, "key", 1);
    assert!(fixture.store.submit(keyed).await?.change.wake, "it takes the regular path");
    // A worker whose lease has expired, and one that has retired.
    let lapsed = fixture.worker(SHORT_LEASE).await?;
    let (late, _granted) = register_provider(fixture, lapsed, 1);
    fixture.wait_for_lease_expiry(lapsed).await;
    assert!(!is_granted().await?);
    drop(late);
    let (gone, _granted) = register_provider(fixture, worker, 1);
    drop(gone);
    assert!(!is_granted().await?);
    Ok(())
}

/// A grant may not have reached its owner, which then has to be notified.
pub(crate) async fn grant_missing_from_the_heartbeat_is_reported_as_lost(fixture: &Fixture) -> Result<()> {
    let owner = fixture.worker(LONG_LEASE).await?;
    let lapsed = fixture.worker(SHORT_LEASE).await?;
    let (_provider, mut granted) = register_provider(fixture, owner, 3);
    let mut sessions = Vec::new();
    for _ in 0..3 {
        sessions.push(fixture.session().await?);
    }
    let (mut runs, mut in_use) = (Vec::new(), Vec::new());
    for session in &sessions {
        runs.push(fixture.submit(*session).await?.run.id);
        in_use.push(granted.recv().await.context("nothing was granted")?);
    }
    let others = fixture.session().await?;
    fixture.submit(others).await?;
    fixture.granted(others, lapsed).await?;
    let waiting = fixture.session().await?;
    let submitted = fixture.submit(waiting).await?;
    assert!(submitted.change.wake);
    let now = Duration::ZERO;
    let found = async || anyhow::Ok(fixture.store.lost_grants(None, 100, now).await?.sessions);
    assert_eq!(found().await?, [], "no heartbeat came since");
    let beat = |running: &[RunId]| {
        let beat =
            Heartbeat { worker: owner, lease: LONG_LEASE, running: running.to_vec(), worked: Vec::new() };
        async move { fixture.store.renew_lease(&beat).await }
    };
    beat(&[runs[1]]).await?;
    fixture.wait_for_lease_expiry(lapsed).await;
    let unheld = |session: &SessionId| LostGrant { tenant: fixture.tenant, session: *session, owner };
    let mut expected = [unheld(&sessions[0]), unheld(&sessions[2])];
    expected.sort_unstable_by_key(|it| it.session.as_uuid());
    assert_eq!(found().await?, expected);
    assert_eq!(fixture.store.lost_grants(None, 100, LONG_LEASE).await?.sessions, [], "it may be on its way");
    // Page by page, over all sessions with work.
    let (mut after, mut all, mut pages) = (None, Vec::new(), 0);
    loop {
        let page = fixture.store.lost_grants(after, 2, now).await?;
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
