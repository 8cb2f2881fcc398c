//! Waiters that are notified directly: one subscription for all of them, whatever sessions their runs are in.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use remuda_domain::{ControlPlaneId, Event, EventBody, RunId, error::Result, run::RunEndNotice};
use remuda_transport::Transport;
use tokio::sync::oneshot;
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

/// Pause before the subscription to end notices is opened again after it failed.
const RETRY: Duration = Duration::from_secs(1);

/// Waiters for runs that name this control plane. The process that commits the end of such a run sends the notice here.
///
/// Notices are best effort: waiters also read the store now and then.
pub(crate) struct DirectWaiters {
    plane: ControlPlaneId,
    waiters: Mutex<HashMap<RunId, Waiter>>,
    /// The subscription to end notices is open.
    subscribed: AtomicBool,
    /// Ends the task.
    _stop: DropGuard,
}

struct Waiter {
    sender: oneshot::Sender<RunEndNotice>,
    /// The run had other events than its submission, which the end notice does not carry. The waiter must read the run.
    needs_read: bool,
}

impl DirectWaiters {
    /// Starts the subscription. The task ends when this is dropped.
    pub(crate) fn start(
        plane: ControlPlaneId,
        tasks: &TaskTracker,
        transport: &Arc<dyn Transport>,
    ) -> Arc<Self> {
        let stop = CancellationToken::new();
        let waiters = Arc::new(Self {
            plane,
            waiters: Mutex::default(),
            subscribed: AtomicBool::new(false),
            _stop: stop.clone().drop_guard(),
        });
        let subscription = keep_subscribed(Arc::downgrade(&waiters), plane, Arc::clone(transport));
        tasks.spawn(stop.run_until_cancelled_owned(subscription));
        waiters
    }

    /// Registers a wait for a run that will name this control plane. `None` while there is no subscription.
    pub(super) fn register(self: &Arc<Self>, run: RunId) -> Option<DirectWait> {
        if !self.subscribed.load(Ordering::Acquire) {
            return None;
        }
        let (sender, ended) = oneshot::channel();
        self.waiters().insert(run, Waiter { sender, needs_read: false });
        Some(DirectWait { run, ended, waiters: Arc::clone(self) })
    }

    /// Observes events that this process committed. A run that ends without ever being executed is notified only here.
    pub(crate) fn observe(&self, events: &[Event]) {
        let relevant = events.iter().filter(|event| !matches!(event.body, EventBody::RunQueued { .. }));
        for event in relevant {
            let Some(run) = event.run else { continue };
            if event.body.terminal_state().is_some() {
                self.notify(RunEndNotice { run, completed: None });
            } else if let Some(waiter) = self.waiters().get_mut(&run) {
                waiter.needs_read = true;
            }
        }
    }

    fn notify(&self, mut notice: RunEndNotice) {
        let Some(Waiter { sender, needs_read }) = self.waiters().remove(&notice.run) else { return };
        if needs_read {
            notice.completed = None;
        }
        // The waiter may be gone.
        sender.send(notice).ok();
    }

    fn waiters(&self) -> MutexGuard<'_, HashMap<RunId, Waiter>> {
        self.waiters.lock()
    }
}

async fn keep_subscribed(waiters: Weak<DirectWaiters>, plane: ControlPlaneId, transport: Arc<dyn Transport>) {
    loop {
        if let Err(error) = receive_notices(&waiters, plane, &*transport).await {
            tracing::debug!(
                error = error.chain(),
                "subscribing to end notices failed; waiters poll the store"
            );
        }
        let Some(waiters) = waiters.upgrade() else { return };
        waiters.subscribed.store(false, Ordering::Release);
        // Notices may have been missed: dropping the senders makes the waiters read the store.
        waiters.waiters().clear();
        drop(waiters);
        tokio::time::sleep(RETRY).await;
    }
}

async fn receive_notices(
    waiters: &Weak<DirectWaiters>,
    plane: ControlPlaneId,
    transport: &dyn Transport,
) -> Result<()> {
    let mut source = transport.subscribe_end_notices(plane).await?;
    if let Some(waiters) = waiters.upgrade() {
        waiters.subscribed.store(true, Ordering::Release);
    }
    while let Some(notices) = source.next().await {
        let Some(waiters) = waiters.upgrade() else { return Ok(()) };
        notices.into_iter().for_each(|notice| waiters.notify(notice));
    }
    Ok(())
}

/// A registered direct wait. Dropping it removes the registration.
pub(super) struct DirectWait {
    run: RunId,
    pub(super) ended: oneshot::Receiver<RunEndNotice>,
    waiters: Arc<DirectWaiters>,
}

impl DirectWait {
    pub(super) fn plane(&self) -> ControlPlaneId {
        self.waiters.plane
    }
}

impl Drop for DirectWait {
    fn drop(&mut self) {
        self.waiters.waiters().remove(&self.run);
    }
}

#[cfg(test)]
mod tests {
    use chrono::Utc;
    use remuda_domain::{EventId, SessionId, run::Completion};
    use remuda_testkit::wait_for;
    use remuda_transport::Memory;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    struct Fixture {
        transport: Arc<dyn Transport>,
        waiters: Arc<DirectWaiters>,
        tasks: TaskTracker,
    }

    impl Fixture {
        async fn new() -> Self {
            let (transport, tasks): (Arc<dyn Transport>, _) = (Arc::new(Memory::new()), TaskTracker::new());
            let waiters = DirectWaiters::start(ControlPlaneId::new(), &tasks, &transport);
            assert!(waiters.register(RunId::new()).is_none(), "not subscribed yet");
            wait_for("the subscription", PATIENCE, || async { waiters.register(RunId::new()).is_some() })
                .await;
            Self { transport, waiters, tasks }
        }

        fn register(&self) -> DirectWait {
            self.waiters.register(RunId::new()).unwrap()
        }

        fn end(&self, run: RunId) -> RunEndNotice {
            let at = Utc::now();
            let completed = Completion { started_at: at, finished_at: at, outcomes: Vec::new() };
            let notice = RunEndNotice { run, completed: Some(completed) };
            self.transport.notify_end(self.waiters.plane, notice.clone());
            notice
        }

        fn is_idle(&self) -> bool {
            self.waiters.waiters().is_empty()
        }
    }

    fn event(run: RunId, body: EventBody) -> Event {
        let (id, session) = (EventId::new(), SessionId::new());
        Event { id, session, cursor: 1, run: Some(run), at: Utc::now(), body }
    }

    #[tokio::test]
    async fn only_the_waiter_of_the_ended_run_is_notified() {
        let fixture = Fixture::new().await;
        let (mut one, mut other) = (fixture.register(), fixture.register());
        fixture.end(RunId::new());
        let notice = fixture.end(other.run);
        assert_eq!((&mut other.ended).await, Ok(notice));
        assert!(one.ended.try_recv().is_err(), "its run has not ended");
        // A dropped wait leaves no registration.
        drop((one, other));
        assert!(fixture.is_idle());
    }

    #[tokio::test]
    async fn notice_carries_no_result_if_the_run_had_other_events() {
        let fixture = Fixture::new().await;
        let mut touched = fixture.register();
        fixture.waiters.observe(&[event(touched.run, EventBody::RunStopped)]);
        fixture.end(touched.run);
        assert_eq!((&mut touched.ended).await.unwrap().completed, None);
        let mut queued = fixture.register();
        let body =
            EventBody::RunQueued { seq: 1, kind: "tools".to_owned(), pending: 1, labels: Default::default() };
        fixture.waiters.observe(&[event(queued.run, body)]);
        let notice = fixture.end(queued.run);
        assert_eq!((&mut queued.ended).await, Ok(notice), "the submission itself does not count");
    }

    #[tokio::test]
    async fn run_cancelled_before_it_starts_notifies_its_waiter() {
        let fixture = Fixture::new().await;
        let mut stopped = fixture.register();
        let body = EventBody::RunCancelled { reason: "enough".to_owned() };
        fixture.waiters.observe(&[event(RunId::new(), EventBody::RunStopped), event(stopped.run, body)]);
        let notice = RunEndNotice { run: stopped.run, completed: None };
        assert_eq!((&mut stopped.ended).await, Ok(notice));
    }

    #[tokio::test]
    async fn waiters_are_released_when_notices_may_have_been_missed() {
        let fixture = Fixture::new().await;
        let mut waiting = fixture.register();
        // More notices than the transport buffers for a subscriber that is not scheduled.
        for _ in 0..10_000 {
            fixture.end(RunId::new());
        }
        assert!((&mut waiting.ended).await.is_err(), "it has to read the store");
        let subscribed = || async { fixture.waiters.register(RunId::new()).is_some() };
        wait_for("the subscription to be back", PATIENCE, subscribed).await;
        drop(waiting);
        let Fixture { waiters, tasks, .. } = fixture;
        drop(waiters);
        tasks.close();
        tasks.wait().await;
    }
}
