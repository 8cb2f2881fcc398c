//! One incarnation of a worker: one id, one lease.

use std::{sync::Arc, time::Duration};

use remuda_domain::{
    WorkerId,
    error::Result,
    worker::{Registration, Signal},
};
use remuda_transport::{Transport, new_bus_secret};
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument as _;

use crate::{
    Worker, active_sessions::ActiveSessions, intake, lease::Lease, log_spans, session::SessionServer,
    slot_offers::SlotOffers, slot_pool::SlotPool,
};

const RETRY: Duration = Duration::from_secs(1);
/// How long killed tools may take to exit at the end.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the final calls may take: abandoning what could not be recorded, and signing off.
const SIGN_OFF_TIMEOUT: Duration = Duration::from_secs(2);

/// Registers, works, and cleans up. Returns when `stop` is cancelled or the lease is lost.
pub(crate) async fn run(worker: Arc<Worker>, stop: CancellationToken) {
    let id = WorkerId::new();
    run_as(id, worker, stop).instrument(log_spans::worker_span(id)).await;
}

async fn run_as(id: WorkerId, worker: Arc<Worker>, stop: CancellationToken) {
    let options = &worker.options;
    let bus_secret = new_bus_secret();
    let registration = Registration {
        id,
        host: options.host.clone(),
        version: options.version.clone(),
        pool: options.pool.clone(),
        slots: options.slots,
        bus_secret: Some(bus_secret.clone()),
    };
    let registered_at = Instant::now();
    let registered = tokio::select! {
        biased;
        () = stop.cancelled() => return,
        registered = worker.engine.store.register_worker(&registration, options.lease) => registered,
    };
    if let Err(error) = registered {
        tracing::warn!(error = error.chain(), retry_in = ?RETRY, "registration failed; retrying");
        // The caller checks for a stop meanwhile.
        drop(timeout(RETRY, stop.cancelled()).await);
        return;
    }
    tracing::info!(pool = %options.pool, slots = options.slots, "worker registered");
    // Not before others can find the key.
    worker.engine.transport.sign_as(id, &bus_secret);

    let active_sessions = ActiveSessions::default();
    let drain = CancellationToken::new();
    let lost = CancellationToken::new();
    let interrupt = CancellationToken::new();
    let abandon = CancellationToken::new();
    let renew_now = Arc::new(Notify::new());
    let lease = Lease {
        store: Arc::clone(&worker.engine.store),
        worker: id,
        length: options.lease,
        every: options.heartbeat,
        active_sessions: active_sessions.clone(),
        guard: worker.guard.clone(),
        backends: worker.engine.backends.clone(),
        drain: drain.clone(),
        renew_now: Arc::clone(&renew_now),
    };
    worker.engine.backends.iter().for_each(|backend| backend.set_worker(id));
    lease.feed(registered_at);
    let server = Arc::new(SessionServer {
        worker: Arc::clone(&worker),
        id,
        active_sessions: active_sessions.clone(),
        drain: drain.clone(),
        interrupt: interrupt.clone(),
        abandon: abandon.clone(),
        lost: lost.clone(),
    });
    let tasks = TaskTracker::new();
    let intake_stop = drain.child_token();
    let slot_pool = Arc::new(SlotPool::new(Arc::clone(&server), tasks.clone(), intake_stop.clone()));
    let intake = intake::run(server, Arc::clone(&slot_pool), tasks.clone(), intake_stop.clone());
    tasks.spawn(intake.in_current_span());
    let offers = SlotOffers {
        worker: id,
        pool: options.pool.clone(),
        transport: Arc::clone(&worker.engine.transport),
        slot_pool: Arc::clone(&slot_pool),
        stop: intake_stop.clone(),
        epoch: registered_at,
    };
    tasks.spawn(offers.run().in_current_span());

    let working = async {
        stop.cancelled().await;
        drain.cancel();
        // No new work is accepted from here on. Running work reaches a step boundary by itself.
        tasks.close();
        if timeout(options.drain_deadline, tasks.wait()).await.is_err() {
            tracing::warn!("drain deadline passed; killing running tools");
            interrupt.cancel();
            if timeout(KILL_TIMEOUT, tasks.wait()).await.is_err() {
                tracing::warn!("interrupted work was not recorded in time; abandoning it");
                abandon.cancel();
                drop(timeout(SIGN_OFF_TIMEOUT, tasks.wait()).await);
            }
        }
    };
    let signals = SignalReceiver {
        transport: worker.engine.transport.as_ref(),
        worker: id,
        active_sessions: &active_sessions,
        slot_pool: &slot_pool,
        drain: &drain,
        renew_now: &renew_now,
    };
    tokio::select! {
        () = working => {
            sign_off(&worker, id).await;
            tracing::info!("worker stopped");
        }
        () = lease.renew_until_lost(registered_at) => {
            worker.meters.record_lost_lease();
            lost.cancel();
            abandon.cancel();
            intake_stop.cancel();
            tasks.close();
            drop(timeout(KILL_TIMEOUT, tasks.wait()).await);
        }
        () = signals.run() => {}
    }
}

/// Retires the worker's registration. A store that does not respond must not delay the exit.
async fn sign_off(worker: &Worker, id: WorkerId) {
    match timeout(SIGN_OFF_TIMEOUT, worker.engine.store.retire_worker(id)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::warn!(error = error.chain(), "worker could not sign off; its lease will expire");
        }
        Err(_) => tracing::warn!("sign-off timed out; the worker's lease will expire"),
    }
}

/// Acts on the signals of other processes.
struct SignalReceiver<'a> {
    transport: &'a dyn Transport,
    worker: WorkerId,
    active_sessions: &'a ActiveSessions,
    slot_pool: &'a Arc<SlotPool>,
    drain: &'a CancellationToken,
    /// Makes the lease ask the store what should stop.
    renew_now: &'a Notify,
}

impl SignalReceiver<'_> {
    /// Receives signals forever. Reopens a broken subscription; meanwhile the heartbeat response carries the same
    /// requests.
    async fn run(&self) {
        loop {
            if let Err(error) = self.receive().await {
                tracing::warn!(error = error.chain(), "cannot receive signals; retrying");
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn receive(&self) -> Result<()> {
        let mut signals = self.transport.subscribe_signals(self.worker).await?;
        while let Some(signal) = signals.next().await {
            match signals.is_proven() {
                true => self.act_on(&signal),
                false => self.check(&signal),
            }
        }
        Ok(())
    }

    fn act_on(&self, signal: &Signal) {
        match signal {
            Signal::Cancel { run, .. } => self.active_sessions.cancel(*run),
            Signal::Drain => self.drain.cancel(),
            Signal::ResendDeltas { session } => self.active_sessions.resend_deltas(*session),
            Signal::ReclaimSession { tenant, session } => self.slot_pool.reclaim_session(*tenant, *session),
        }
    }

    /// Asks the store about a signal that anybody may have sent.
    fn check(&self, signal: &Signal) {
        match signal {
            // The response to a heartbeat names what should stop.
            Signal::Cancel { .. } | Signal::Drain => self.renew_now.notify_one(),
            // Not in the store; the reader repeats the request.
            Signal::ResendDeltas { .. } => {}
            Signal::ReclaimSession { tenant, session } => self.slot_pool.claim_hinted(*tenant, *session),
        }
    }
}
