//! Generates events at a fixed rate: an open loop of runs that do nothing.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use remuda_proto::v1;
use tokio::{
    sync::Semaphore,
    task::JoinHandle,
    time::{Instant, MissedTickBehavior, interval},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::workload::{CallError, FailoverClient, wait_until_idle};

/// How long a submit may take, over all servers.
const SUBMIT: Duration = Duration::from_secs(30);
/// How long the first run may take, from which the events per run are counted.
const FIRST_RUN: Duration = Duration::from_secs(60);
/// The limit of submits without an answer. Beyond it, submits are skipped and counted as failed: the servers are too slow.
const MAX_UNANSWERED: usize = 1024;

/// The rate of the load and its sessions.
#[derive(Clone, Debug)]
pub(super) struct EventLoadPlan {
    pub(super) failover: FailoverClient,
    pub(super) sessions: Vec<Arc<str>>,
    /// Events per second over all sessions.
    pub(super) events: f64,
    /// The share of all runs that goes to the first session; the rest is spread evenly.
    pub(super) first_share: f64,
    pub(super) seed: u64,
}

/// Running load.
#[derive(Debug)]
pub(super) struct EventLoad {
    stop: CancellationToken,
    driving: JoinHandle<()>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    accepted: AtomicU64,
    /// Refused, unanswered or skipped.
    failed: AtomicU64,
}

impl EventLoad {
    /// Measures the number of events per run and starts to submit.
    pub(super) async fn start(plan: EventLoadPlan) -> anyhow::Result<Self> {
        let events_per_run = events_per_run(&plan).await?;
        let every = Duration::from_secs_f64(events_per_run / plan.events);
        let (stop, counts) = (CancellationToken::new(), Arc::<Counts>::default());
        let driving = TaskTracker::new().spawn(drive(plan, every, Arc::clone(&counts), stop.clone()));
        Ok(Self { stop, driving, counts })
    }

    /// Stops submitting and waits for the outstanding answers.
    pub(super) async fn stop(self) -> anyhow::Result<Arc<Counts>> {
        self.stop.cancel();
        self.driving.await.context("the load task panicked")?;
        Ok(self.counts)
    }
}

impl Counts {
    pub(super) fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    pub(super) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }
}

/// Submits one run and counts the events it adds to its session.
async fn events_per_run(plan: &EventLoadPlan) -> anyhow::Result<f64> {
    let session = plan.sessions.last().context("no session")?;
    let deadline = Instant::now() + FIRST_RUN;
    let before = wait_until_idle(&plan.failover, session, deadline).await?;
    submit(&plan.failover, session, "fanout-first".to_owned()).await.map_err(CallError::into_error)?;
    let events = wait_until_idle(&plan.failover, session, deadline).await? - before;
    anyhow::ensure!(events > 0, "a run has no events");
    Ok(events as f64)
}

async fn drive(plan: EventLoadPlan, every: Duration, counts: Arc<Counts>, stop: CancellationToken) {
    let mut rng = StdRng::seed_from_u64(plan.seed);
    let unanswered = Arc::new(Semaphore::new(MAX_UNANSWERED));
    let submits = TaskTracker::new();
    let mut ticks = interval(every);
    // Catch up after a delay: the rate must not depend on the servers.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    for number in 0_u64.. {
        tokio::select! {
            _ = ticks.tick() => {}
            () = stop.cancelled() => break,
        }
        let Ok(place) = Arc::clone(&unanswered).try_acquire_owned() else {
            counts.failed.fetch_add(1, Ordering::Relaxed);
            continue;
        };
        let session =
            if rng.random_bool(plan.first_share) { 0 } else { rng.random_range(0..plan.sessions.len()) };
        let (failover, session) = (plan.failover.clone(), Arc::clone(&plan.sessions[session]));
        let (key, counts) = (format!("fanout-{number}"), Arc::clone(&counts));
        submits.spawn(async move {
            let count = match submit(&failover, &session, key).await {
                Ok(()) => &counts.accepted,
                Err(_) => &counts.failed,
            };
            count.fetch_add(1, Ordering::Relaxed);
            drop(place);
        });
    }
    submits.close();
    submits.wait().await;
}

/// Submits a run of one call that does nothing.
pub(super) async fn submit(failover: &FailoverClient, session: &str, key: String) -> Result<(), CallError> {
    let call = v1::ToolCall { tool: "noop".to_owned(), ..v1::ToolCall::default() };
    let request = v1::SubmitRunRequest {
        session: session.to_owned(),
        idempotency_key: key,
        input: Some(v1::submit_run_request::Input::Tools(v1::ToolsInput {
            calls: vec![call],
            ..v1::ToolsInput::default()
        })),
        ..v1::SubmitRunRequest::default()
    };
    let submit = failover.call(SUBMIT, |client| {
        let request = request.clone();
        async move { client.submit(request).await }
    });
    submit.await.map(drop)
}
