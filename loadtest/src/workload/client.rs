//! Clients that submit bursts of runs and cancel some of them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use remuda_proto::v1;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Record,
    failover::{Addresses, CallError, FailoverClient},
    run_plan::{RunPlan, SubmitContext},
    session_tracker::SessionTracker,
};
use crate::{
    observed_history::{Cancel, Submit, SubmitOutcome, now},
    tool_journal::Journal,
};

/// How long a client retries to submit one run.
const SUBMIT_TIMEOUT: Duration = Duration::from_secs(25);
const CANCEL_TIMEOUT: Duration = Duration::from_secs(25);
const MAX_BURST: u32 = 6;

/// The state shared by all clients.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(super) addresses: Addresses,
    pub(super) failover: FailoverClient,
    pub(super) tracker: Arc<SessionTracker>,
    /// Session ids.
    pub(super) sessions: Vec<Arc<str>>,
    /// The number of sessions, from the first on, in which runs interrupt others.
    pub(super) interrupting: usize,
    pub(super) journal: Journal,
    pub(super) key_prefix: String,
    pub(super) seed: u64,
    /// The average time between two submits of one client.
    pub(super) pause: Duration,
    pub(super) numbers: AtomicU64,
    pub(super) record: Mutex<Record>,
}

impl Driver {
    /// Submits until `stop`. Cancels are spawned on `tasks`.
    pub(super) async fn drive(self: Arc<Self>, client: usize, tasks: TaskTracker, stop: CancellationToken) {
        let mut rng = StdRng::seed_from_u64(self.seed.rotate_left(32) ^ client as u64);
        while !stop.is_cancelled() {
            let begun = Instant::now();
            let session = rng.random_range(0..self.sessions.len());
            let burst = rng.random_range(1..=MAX_BURST);
            let mut sent = 0;
            while sent < burst && !stop.is_cancelled() && self.tracker.reserve(session) {
                self.submit(session, &tasks).await;
                sent += 1;
            }
            // A full session costs the time of one submit, so that clients do not spin.
            let pause = self.pause * sent.max(1);
            tokio::select! {
                () = sleep_until(begun + pause.mul_f64(rng.random_range(0.5..1.5))) => {}
                () = stop.cancelled() => {}
            }
        }
    }

    async fn submit(self: &Arc<Self>, session: usize, tasks: &TaskTracker) {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let plan = RunPlan::new(self.seed, number);
        let key = format!("{}{number}", self.key_prefix);
        let interrupting = session < self.interrupting;
        let context = SubmitContext {
            session,
            session_id: &self.sessions[session],
            key: &key,
            journal: &self.journal,
            interrupting,
        };
        let request = plan.request(number, &context);
        let sent = now();
        let submitted = self.failover.call(SUBMIT_TIMEOUT, |client| {
            let request = request.clone();
            async move { client.submit(request).await }
        });
        let outcome = match submitted.await {
            Ok(v1::SubmitRunResponse { run: Some(run), .. }) => {
                SubmitOutcome::Accepted { run: run.id.into() }
            }
            Ok(v1::SubmitRunResponse { run: None, .. }) => {
                SubmitOutcome::Refused("no run in the answer".to_owned())
            }
            Err(CallError::Refused(error)) => SubmitOutcome::Refused(format!("{}: {error}", error.code())),
            Err(CallError::TimedOut(error)) => SubmitOutcome::Unknown(format!("{}: {error}", error.code())),
        };
        let accepted = match &outcome {
            SubmitOutcome::Accepted { run } => Some(Arc::clone(run)),
            SubmitOutcome::Refused(_) | SubmitOutcome::Unknown(_) => None,
        };
        self.tracker.record_answer(session, accepted.as_ref());
        let (calls, expects) = plan.expectations(interrupting);
        let session = Arc::clone(&self.sessions[session]);
        let submit = Submit { key, session, sent, answered: now(), outcome, calls, expects };
        self.record().submits.push(submit);
        if let (Some(run), Some(delay)) = (accepted, plan.cancel_after) {
            tasks.spawn(Arc::clone(self).cancel(run, delay));
        }
    }

    async fn cancel(self: Arc<Self>, run: Arc<str>, delay: Duration) {
        sleep(delay).await;
        let requested = now();
        let request = v1::CancelRunRequest { run_id: run.to_string(), reason: "load test".to_owned() };
        let cancelled = self.failover.call(CANCEL_TIMEOUT, |client| {
            let request = request.clone();
            async move { client.cancel_run(request).await }
        });
        // The end of the run shows whether it worked: a cancel without an answer guarantees nothing.
        if cancelled.await.is_ok_and(|answer| !answer.already_finished) {
            self.record().cancels.push(Cancel { run, requested });
        }
    }
}
