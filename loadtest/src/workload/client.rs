//! The life of one client: bursts of submits, some followed by a cancel.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use remuda_proto::v1;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Record,
    fleet::{Addresses, CallError, Fleet},
    plan::{Place, Plan},
    room::Rooms,
};
use crate::{
    history::{Answer, Cancel, Submit, now},
    journal::Journal,
};

/// How long a client goes on trying to submit one run.
const SUBMIT_WITHIN: Duration = Duration::from_secs(25);
const CANCEL_WITHIN: Duration = Duration::from_secs(25);
const LONGEST_BURST: u32 = 6;

/// What all clients share.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(super) addresses: Addresses,
    pub(super) fleet: Fleet,
    pub(super) rooms: Arc<Rooms>,
    /// Ids.
    pub(super) sessions: Vec<Arc<str>>,
    /// Sessions, from the first on, in which runs interrupt others.
    pub(super) interrupting: usize,
    pub(super) journal: Journal,
    pub(super) key_prefix: String,
    pub(super) seed: u64,
    /// Time of one client for one submit.
    pub(super) pause: Duration,
    pub(super) numbers: AtomicU64,
    pub(super) record: Mutex<Record>,
}

impl Driver {
    /// Submits until `stop`. Cancels are left to `tasks`.
    pub(super) async fn drive(self: Arc<Self>, client: usize, tasks: TaskTracker, stop: CancellationToken) {
        let mut rng = StdRng::seed_from_u64(self.seed.rotate_left(32) ^ client as u64);
        while !stop.is_cancelled() {
            let begun = Instant::now();
            let session = rng.random_range(0..self.sessions.len());
            let burst = rng.random_range(1..=LONGEST_BURST);
            let mut sent = 0;
            while sent < burst && !stop.is_cancelled() && self.rooms.enter(session) {
                self.submit(session, &tasks).await;
                sent += 1;
            }
            // A full session costs as much time as one submit, so that clients do not spin.
            let pause = self.pause * sent.max(1);
            tokio::select! {
                () = sleep_until(begun + pause.mul_f64(rng.random_range(0.5..1.5))) => {}
                () = stop.cancelled() => {}
            }
        }
    }

    async fn submit(self: &Arc<Self>, session: usize, tasks: &TaskTracker) {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let plan = Plan::new(self.seed, number);
        let key = format!("{}{number}", self.key_prefix);
        let interrupting = session < self.interrupting;
        let place = Place {
            session,
            session_id: &self.sessions[session],
            key: &key,
            journal: &self.journal,
            interrupting,
        };
        let request = plan.request(number, &place);
        let sent = now();
        let submitted = self.fleet.call(SUBMIT_WITHIN, |client| {
            let request = request.clone();
            async move { client.submit(request).await }
        });
        let answer = match submitted.await {
            Ok(v1::SubmitRunResponse { run: Some(run), .. }) => Answer::Accepted { run: run.id.into() },
            Ok(v1::SubmitRunResponse { run: None, .. }) => Answer::Refused("no run in the answer".to_owned()),
            Err(CallError::Refused(error)) => Answer::Refused(format!("{}: {error}", error.code())),
            Err(CallError::NoAnswer(error)) => Answer::Unknown(format!("{}: {error}", error.code())),
        };
        let accepted = match &answer {
            Answer::Accepted { run } => Some(Arc::clone(run)),
            Answer::Refused(_) | Answer::Unknown(_) => None,
        };
        self.rooms.answered(session, accepted.as_ref());
        let (calls, expects) = plan.expected(interrupting);
        let session = Arc::clone(&self.sessions[session]);
        let submit = Submit { key, session, sent, answered: now(), answer, calls, expects };
        self.record().submits.push(submit);
        if let (Some(run), Some(delay)) = (accepted, plan.cancel_after) {
            tasks.spawn(Arc::clone(self).cancel(run, delay));
        }
    }

    async fn cancel(self: Arc<Self>, run: Arc<str>, delay: Duration) {
        sleep(delay).await;
        let requested = now();
        let request = v1::CancelRunRequest { run_id: run.to_string(), reason: "load test".to_owned() };
        let cancelled = self.fleet.call(CANCEL_WITHIN, |client| {
            let request = request.clone();
            async move { client.cancel_run(request).await }
        });
        // Whether it worked is seen in how the run ends: a cancel that nobody answered is no promise.
        if cancelled.await.is_ok_and(|answer| !answer.already_finished) {
            self.record().cancels.push(Cancel { run, requested });
        }
    }
}
