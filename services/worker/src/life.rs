//! One life of a worker: one id, one lease.

use std::{sync::Arc, time::Duration};

use remuda_domain::{
    WorkerId,
    error::Result,
    worker::{Registration, Signal},
};
use remuda_transport::Transport;
use tokio::time::{Instant, timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument as _;

use crate::{
    Worker, context, held::Held, intake, lease::Lease, offers::Offers, seats::Room, session::SessionServer,
};

const RETRY: Duration = Duration::from_secs(1);
/// How long killed tools may take to be gone at the end.
const KILL_PATIENCE: Duration = Duration::from_secs(10);
/// How long the last words may take: noticing that nothing more is to be recorded, signing off.
const LAST_PATIENCE: Duration = Duration::from_secs(2);

/// Registers, works, and tidies up. Returns when told to stop, or when the lease is lost.
pub(crate) async fn live(worker: Arc<Worker>, stop: CancellationToken) {
    let id = WorkerId::new();
    live_as(id, worker, stop).instrument(context::of_worker(id)).await;
}

async fn live_as(id: WorkerId, worker: Arc<Worker>, stop: CancellationToken) {
    let options = &worker.options;
    let registration = Registration {
        id,
        host: options.host.clone(),
        version: options.version.clone(),
        pool: options.pool.clone(),
        slots: options.slots,
    };
    let registered_at = Instant::now();
    let registered = tokio::select! {
        biased;
        () = stop.cancelled() => return,
        registered = worker.engine.store.register_worker(&registration, options.lease) => registered,
    };
    if let Err(error) = registered {
        tracing::warn!(error = error.chain(), retry_in = ?RETRY, "waiting for the store to register");
        // A stop meanwhile is seen by the caller.
        drop(timeout(RETRY, stop.cancelled()).await);
        return;
    }
    tracing::info!(pool = %options.pool, slots = options.slots, "worker registered");

    let held = Held::default();
    let drain = CancellationToken::new();
    let lost = CancellationToken::new();
    let interrupt = CancellationToken::new();
    let abandon = CancellationToken::new();
    let lease = Lease {
        store: Arc::clone(&worker.engine.store),
        worker: id,
        length: options.lease,
        every: options.heartbeat,
        held: held.clone(),
        guard: worker.guard.clone(),
        backends: worker.engine.backends.clone(),
        drain: drain.clone(),
    };
    worker.engine.backends.iter().for_each(|backend| backend.serve(id));
    lease.feed(registered_at);
    let server = Arc::new(SessionServer {
        worker: Arc::clone(&worker),
        id,
        held: held.clone(),
        drain: drain.clone(),
        interrupt: interrupt.clone(),
        abandon: abandon.clone(),
        lost: lost.clone(),
    });
    let tasks = TaskTracker::new();
    let intake_stop = drain.child_token();
    let room = Arc::new(Room::new(Arc::clone(&server), tasks.clone(), intake_stop.clone()));
    let intake = intake::run(server, Arc::clone(&room), tasks.clone(), intake_stop.clone());
    tasks.spawn(intake.in_current_span());
    let offers = Offers {
        worker: id,
        pool: options.pool.clone(),
        transport: Arc::clone(&worker.engine.transport),
        room: Arc::clone(&room),
        stop: intake_stop.clone(),
        epoch: registered_at,
    };
    tasks.spawn(offers.run().in_current_span());

    let working = async {
        stop.cancelled().await;
        drain.cancel();
        // From here on nothing new is taken; what runs comes to a step boundary by itself.
        tasks.close();
        if timeout(options.drain_deadline, tasks.wait()).await.is_err() {
            tracing::warn!("the drain deadline has passed; killing what still runs");
            interrupt.cancel();
            if timeout(KILL_PATIENCE, tasks.wait()).await.is_err() {
                tracing::warn!("what was interrupted could not be recorded in time");
                abandon.cancel();
                drop(timeout(LAST_PATIENCE, tasks.wait()).await);
            }
        }
    };
    let signals = listen(worker.engine.transport.as_ref(), id, &held, &room, &drain);
    tokio::select! {
        () = working => {
            sign_off(&worker, id).await;
            tracing::info!("worker stopped");
        }
        () = lease.keep(registered_at) => {
            worker.meters.lost_life();
            lost.cancel();
            abandon.cancel();
            intake_stop.cancel();
            tasks.close();
            drop(timeout(KILL_PATIENCE, tasks.wait()).await);
        }
        () = signals => {}
    }
}

/// A store that does not answer must not hold up the exit.
async fn sign_off(worker: &Worker, id: WorkerId) {
    match timeout(LAST_PATIENCE, worker.engine.store.retire_worker(id)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::warn!(
                error = error.chain(),
                "the worker could not sign off; its lease will end by itself"
            );
        }
        Err(_) => tracing::warn!("the store did not answer; the worker's lease will end by itself"),
    }
}

/// Takes signals for ever. A broken subscription is opened anew; meanwhile the heartbeat carries the same orders.
async fn listen(
    transport: &dyn Transport,
    worker: WorkerId,
    held: &Held,
    room: &Room,
    drain: &CancellationToken,
) {
    loop {
        if let Err(error) = obey_signals(transport, worker, held, room, drain).await {
            tracing::warn!(error = error.chain(), "signals cannot be received at the moment");
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn obey_signals(
    transport: &dyn Transport,
    worker: WorkerId,
    held: &Held,
    room: &Room,
    drain: &CancellationToken,
) -> Result<()> {
    let mut signals = transport.subscribe_signals(worker).await?;
    while let Some(signal) = signals.next().await {
        match signal {
            Signal::Cancel { run, .. } => held.cancel(run),
            Signal::Drain => drain.cancel(),
            Signal::TellAgain { session } => held.tell_again(session),
            Signal::Yours { tenant, session } => room.claim_own(tenant, session),
        }
    }
    Ok(())
}
