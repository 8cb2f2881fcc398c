//! Takes tokens, never more than there are free slots.

use std::{sync::Arc, time::Duration};

use remuda_domain::error::Result;
use remuda_store::Seats;
use remuda_transport::{Token, TokenSource};
use tokio::{sync::OwnedSemaphorePermit, time::timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument as _;

use crate::{context, seats::Room, session::SessionServer};

const RETRY: Duration = Duration::from_secs(1);

/// A token for which no slot becomes free for so long is given back, as other workers may have one.
const SLOT_PATIENCE: Duration = Duration::from_millis(100);
/// Tokens that wait come sooner than this.
const NONE_WAIT: Duration = Duration::from_millis(10);
const SOON: Duration = Duration::from_millis(20);

/// Runs until `stop`. Each token gets a task of `tasks`, and so does whatever the store grants by itself.
pub(crate) async fn run(
    server: Arc<SessionServer>,
    room: Arc<Room>,
    tasks: TaskTracker,
    stop: CancellationToken,
) {
    let elsewhere = match server.worker.engine.transport.carrier() {
        // Grants are brought from other processes, and it is there that the store asks for room.
        Some(_) => Elsewhere::Others,
        None => {
            let seats: Arc<dyn Seats> = room.clone();
            server.worker.engine.store.stand_by(Arc::downgrade(&seats));
            Elsewhere::Nobody
        }
    };
    Intake { server, tasks, room, stop, elsewhere }.take_tokens().await;
}

/// Who else could take a token for which there is no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Elsewhere {
    /// It waits in this process, which is where it would wait anyhow.
    Nobody,
    Others,
}

struct Intake {
    server: Arc<SessionServer>,
    tasks: TaskTracker,
    room: Arc<Room>,
    stop: CancellationToken,
    elsewhere: Elsewhere,
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

    /// Takes tokens until `stop`, or until the source fails. Slots are not kept for them while they are waited for, as grants take slots, too.
    async fn take_all(&self, source: &mut dyn TokenSource) -> Result<()> {
        loop {
            let Some(slot) = self.one_slot().await else { return Ok(()) };
            drop(slot);
            let count = self.room.slots().available_permits().max(1);
            let Some(taken) = self.stop.run_until_cancelled(self.take(source, count)).await else {
                return Ok(());
            };
            let taken = taken?;
            self.room.set_crowded(taken.len() >= count);
            let mut tokens = taken.into_iter();
            while let Some(token) = tokens.next() {
                let Some(slot) = self.slot_for_token().await else {
                    self.put_back(std::iter::once(token).chain(tokens)).await;
                    break;
                };
                self.serve(token, slot);
            }
            if self.stop.is_cancelled() {
                return Ok(());
            }
        }
    }

    /// Takes tokens. If none come at once, nobody waits for the slots that there are.
    async fn take(&self, source: &mut dyn TokenSource, count: usize) -> Result<Vec<Box<dyn Token>>> {
        let taking = source.take(count);
        tokio::pin!(taking);
        match timeout(NONE_WAIT, &mut taking).await {
            Ok(taken) => taken,
            Err(_) => {
                self.room.set_crowded(false);
                taking.await
            }
        }
    }

    fn serve(&self, token: Box<dyn Token>, slot: OwnedSemaphorePermit) {
        let (server, slot) = (Arc::clone(&self.server), self.room.occupy(slot));
        let span = context::of_session(token.tenant(), token.session());
        let serving = async move {
            server.serve(token).await;
            drop(slot);
        };
        self.tasks.spawn(serving.instrument(span));
    }

    async fn put_back(&self, tokens: impl Iterator<Item = Box<dyn Token>>) {
        for token in tokens {
            if let Err(error) = token.retry_after(SOON).await {
                tracing::debug!(error = error.chain(), "the token will come back by itself");
            }
        }
    }

    /// Whoever waits for a slot gets the next one that is free, before any grant does.
    async fn slot_for_token(&self) -> Option<OwnedSemaphorePermit> {
        match self.elsewhere {
            Elsewhere::Nobody => self.one_slot().await,
            Elsewhere::Others => timeout(SLOT_PATIENCE, self.one_slot()).await.ok().flatten(),
        }
    }

    /// A slot, unless nothing more is taken.
    async fn one_slot(&self) -> Option<OwnedSemaphorePermit> {
        let slots = Arc::clone(self.room.slots());
        let slot = self.stop.run_until_cancelled(slots.acquire_owned()).await?;
        slot.ok()
    }
}
