//! Takes tokens, never more than there are free slots.

use std::{sync::Arc, time::Duration};

use remuda_domain::error::Result;
use remuda_store::{Seats, StandBy};
use remuda_transport::{Token, TokenSource};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument as _;

use crate::{context, seats::Room, session::SessionServer};

const RETRY: Duration = Duration::from_secs(1);

/// Runs until `stop`. Each token gets a task of `tasks`, and so does whatever the store grants by itself.
pub(crate) async fn run(server: Arc<SessionServer>, tasks: TaskTracker, stop: CancellationToken) {
    let slots = Arc::new(Semaphore::new(server.worker.options.slots as usize));
    let room: Arc<dyn Seats> =
        Arc::new(Room::new(Arc::clone(&server), tasks.clone(), Arc::clone(&slots), stop.clone()));
    let stand_by =
        StandBy { worker: server.id, pool: server.worker.options.pool.clone(), seats: Arc::downgrade(&room) };
    let hands = if server.worker.engine.store.stand_by(stand_by) { Hands::Open } else { Hands::Full };
    Intake { server, tasks, slots, stop, hands }.take_tokens().await;
    drop(room);
}

/// Whether slots are kept for tokens while these are waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hands {
    /// Nobody else takes slots, so what is free when tokens are asked for is free when they come.
    Full,
    /// Grants take slots, too. A token that finds none waits for one in this process, which is where it would wait anyhow.
    Open,
}

struct Intake {
    server: Arc<SessionServer>,
    tasks: TaskTracker,
    slots: Arc<Semaphore>,
    stop: CancellationToken,
    hands: Hands,
}

impl Intake {
    async fn take_tokens(&self) {
        let worker = &self.server.worker;
        while !self.stop.is_cancelled() {
            let opened = worker.engine.transport.tokens(&worker.options.pool).await;
            let failed = match opened {
                Ok(mut source) => self.take_all(source.as_mut()).await,
                Err(error) => Err(error),
            };
            if let Err(error) = failed {
                tracing::warn!(error = error.chain(), retry_in = ?RETRY, "tokens cannot be taken at the moment");
                tokio::select! {
                    () = self.stop.cancelled() => {}
                    () = tokio::time::sleep(RETRY) => {}
                }
            }
        }
    }

    /// Takes tokens until `stop`, or until the source fails.
    async fn take_all(&self, source: &mut dyn TokenSource) -> Result<()> {
        loop {
            let Some(mut free) = self.free_slots().await else { return Ok(()) };
            let count = free.num_permits() + self.slots.available_permits();
            if self.hands == Hands::Open {
                drop(free.split(1));
            }
            let taken = tokio::select! {
                biased;
                () = self.stop.cancelled() => return Ok(()),
                taken = source.take(count) => taken,
            };
            for token in taken? {
                let slot = match free.split(1) {
                    Some(slot) => Some(slot),
                    // Whoever waits for a slot gets the next one that is free, before any grant does.
                    None => self.one_slot().await,
                };
                let Some(slot) = slot else { return Ok(()) };
                self.serve(token, slot);
            }
        }
    }

    fn serve(&self, token: Box<dyn Token>, slot: OwnedSemaphorePermit) {
        let server = Arc::clone(&self.server);
        let span = context::of_session(token.tenant(), token.session());
        let serving = async move {
            server.serve(token).await;
            drop(slot);
        };
        self.tasks.spawn(serving.instrument(span));
    }

    /// A slot that is free, with all others if nobody else may have them.
    async fn free_slots(&self) -> Option<OwnedSemaphorePermit> {
        let mut free = self.one_slot().await?;
        while self.hands == Hands::Full
            && let Ok(more) = Arc::clone(&self.slots).try_acquire_owned()
        {
            free.merge(more);
        }
        Some(free)
    }

    /// A slot, unless nothing more is taken.
    async fn one_slot(&self) -> Option<OwnedSemaphorePermit> {
        let slot = self.stop.run_until_cancelled(Arc::clone(&self.slots).acquire_owned()).await?;
        slot.ok()
    }
}
