//! Who is told of the end of a run by name: one source for all who wait here, whatever sessions their runs are in.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use remuda_domain::{Event, EventBody, PlaneId, RunId, error::Result, run::LastWords};
use remuda_transport::Transport;
use tokio::sync::oneshot;
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

/// When ends cannot be heard, they are listened to again after this.
const RETRY: Duration = Duration::from_secs(1);

/// Whoever ends a run tells the control plane that is named in it. What this is not told of nobody hears: whoever waits looks into the
/// store now and then.
pub(crate) struct Named {
    plane: PlaneId,
    waiting: Mutex<HashMap<RunId, Waiting>>,
    /// There is somebody who listens.
    hears: AtomicBool,
    /// Ends the task.
    _stop: DropGuard,
}

struct Waiting {
    told: oneshot::Sender<LastWords>,
    /// More happened to the run than its last words will tell.
    has_a_past: bool,
}

impl Named {
    /// Starts to listen. The task ends when this is dropped.
    pub(crate) fn start(plane: PlaneId, tasks: &TaskTracker, transport: &Arc<dyn Transport>) -> Arc<Self> {
        let stop = CancellationToken::new();
        let named = Arc::new(Self {
            plane,
            waiting: Mutex::default(),
            hears: AtomicBool::new(false),
            _stop: stop.clone().drop_guard(),
        });
        let listening = listen(Arc::downgrade(&named), plane, Arc::clone(transport));
        tasks.spawn(stop.run_until_cancelled_owned(listening));
        named
    }

    /// What resolves when the run has ended, if it names this plane. Nothing while nobody listens.
    pub(super) fn expect(self: &Arc<Self>, run: RunId) -> Option<NamedWait> {
        if !self.hears.load(Ordering::Acquire) {
            return None;
        }
        let (told, ended) = oneshot::channel();
        self.waiting().insert(run, Waiting { told, has_a_past: false });
        Some(NamedWait { run, ended, named: Arc::clone(self) })
    }

    /// Takes note of what was committed here. Runs that end without ever being executed have nobody else to tell of them.
    pub(crate) fn note(&self, events: &[Event]) {
        let news = events.iter().filter(|event| !matches!(event.body, EventBody::RunQueued { .. }));
        for event in news {
            let Some(run) = event.run else { continue };
            if event.body.terminal_state().is_some() {
                self.tell(LastWords { run, completed: None });
            } else if let Some(waiting) = self.waiting().get_mut(&run) {
                waiting.has_a_past = true;
            }
        }
    }

    fn tell(&self, mut words: LastWords) {
        let Some(Waiting { told, has_a_past }) = self.waiting().remove(&words.run) else { return };
        if has_a_past {
            words.completed = None;
        }
        // One that went away needs no answer.
        told.send(words).ok();
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<RunId, Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn listen(named: Weak<Named>, plane: PlaneId, transport: Arc<dyn Transport>) {
    loop {
        if let Err(error) = hear(&named, plane, &*transport).await {
            tracing::debug!(error = error.chain(), "ends of runs cannot be heard at the moment");
        }
        let Some(named) = named.upgrade() else { return };
        named.hears.store(false, Ordering::Release);
        // Some may have been missed: those who wait look for themselves.
        named.waiting().clear();
        drop(named);
        tokio::time::sleep(RETRY).await;
    }
}

async fn hear(named: &Weak<Named>, plane: PlaneId, transport: &dyn Transport) -> Result<()> {
    let mut ends = transport.subscribe_ends(plane).await?;
    if let Some(named) = named.upgrade() {
        named.hears.store(true, Ordering::Release);
    }
    while let Some(ends) = ends.next().await {
        let Some(named) = named.upgrade() else { return Ok(()) };
        ends.into_iter().for_each(|words| named.tell(words));
    }
    Ok(())
}

/// Somebody who is told by name.
pub(super) struct NamedWait {
    run: RunId,
    pub(super) ended: oneshot::Receiver<LastWords>,
    named: Arc<Named>,
}

impl NamedWait {
    pub(super) fn plane(&self) -> PlaneId {
        self.named.plane
    }
}

impl Drop for NamedWait {
    fn drop(&mut self) {
        self.named.waiting().remove(&self.run);
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

    struct Lab {
        transport: Arc<dyn Transport>,
        named: Arc<Named>,
        tasks: TaskTracker,
    }

    impl Lab {
        async fn new() -> Self {
            let (transport, tasks): (Arc<dyn Transport>, _) = (Arc::new(Memory::new()), TaskTracker::new());
            let named = Named::start(PlaneId::new(), &tasks, &transport);
            assert!(named.expect(RunId::new()).is_none(), "nobody listens yet");
            wait_for("somebody listens", PATIENCE, || async { named.expect(RunId::new()).is_some() }).await;
            Self { transport, named, tasks }
        }

        fn expect(&self) -> NamedWait {
            self.named.expect(RunId::new()).unwrap()
        }

        fn end(&self, run: RunId) -> LastWords {
            let at = Utc::now();
            let completed = Completion { started_at: at, finished_at: at, outcomes: Vec::new() };
            let words = LastWords { run, completed: Some(completed) };
            self.transport.tell_end(self.named.plane, words.clone());
            words
        }

        fn is_idle(&self) -> bool {
            self.named.waiting().is_empty()
        }
    }

    fn event(run: RunId, body: EventBody) -> Event {
        let (id, session) = (EventId::new(), SessionId::new());
        Event { id, session, cursor: 1, run: Some(run), at: Utc::now(), body }
    }

    #[tokio::test]
    async fn who_waits_is_told_by_name() {
        let lab = Lab::new().await;
        let (mut one, mut other) = (lab.expect(), lab.expect());
        lab.end(RunId::new());
        let words = lab.end(other.run);
        assert_eq!((&mut other.ended).await, Ok(words));
        assert!(one.ended.try_recv().is_err(), "its run goes on");
        // Who goes away is not kept.
        drop((one, other));
        assert!(lab.is_idle());
    }

    #[tokio::test]
    async fn a_run_that_was_touched_has_to_be_looked_up() {
        let lab = Lab::new().await;
        let mut touched = lab.expect();
        lab.named.note(&[event(touched.run, EventBody::RunStopped)]);
        lab.end(touched.run);
        assert_eq!((&mut touched.ended).await.unwrap().completed, None);
        let mut queued = lab.expect();
        let body = EventBody::RunQueued { seq: 1, kind: "tools".to_owned(), pending: 1 };
        lab.named.note(&[event(queued.run, body)]);
        let words = lab.end(queued.run);
        assert_eq!((&mut queued.ended).await, Ok(words), "that it was queued everybody knows");
    }

    #[tokio::test]
    async fn a_run_that_is_stopped_before_it_begins_has_ended() {
        let lab = Lab::new().await;
        let mut stopped = lab.expect();
        let body = EventBody::RunCancelled { reason: "enough".to_owned() };
        lab.named.note(&[event(RunId::new(), EventBody::RunStopped), event(stopped.run, body)]);
        let words = LastWords { run: stopped.run, completed: None };
        assert_eq!((&mut stopped.ended).await, Ok(words));
    }

    #[tokio::test]
    async fn who_may_have_missed_something_is_let_go() {
        let lab = Lab::new().await;
        let mut waiting = lab.expect();
        // More than is kept for a listener that had no turn to listen.
        for _ in 0..10_000 {
            lab.end(RunId::new());
        }
        assert!((&mut waiting.ended).await.is_err(), "it has to look");
        wait_for("somebody listens again", PATIENCE, || async { lab.named.expect(RunId::new()).is_some() })
            .await;
        drop(waiting);
        let Lab { named, tasks, .. } = lab;
        drop(named);
        tasks.close();
        tasks.wait().await;
    }
}
