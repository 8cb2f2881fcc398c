//! Takes session tokens from the transport, never more than there are free slots.

use std::{sync::Arc, time::Duration};

use remuda_domain::error::Result;
use remuda_store::SlotProvider;
use remuda_transport::{Token, TokenSource};
use tokio::{sync::OwnedSemaphorePermit, time::timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument as _;

use crate::{log_spans, session::SessionServer, slot_pool::SlotPool};

const RETRY: Duration = Duration::from_secs(1);

/// A token that finds no free slot for this long is put back, because another worker may have one.
const MAX_SLOT_WAIT: Duration = Duration::from_millis(100);
/// Tokens that are already queued arrive sooner than this. If none arrived, there is no backlog.
const BACKLOG_PROBE: Duration = Duration::from_millis(10);
/// Redelivery delay of a token that was put back.
const PUT_BACK_DELAY: Duration = Duration::from_millis(20);

/// Runs until `stop`. Each token, and each session that the store grants directly, is served by a task of `tasks`.
pub(crate) async fn run(
    server: Arc<SessionServer>,
    slot_pool: Arc<SlotPool>,
    tasks: TaskTracker,
    stop: CancellationToken,
) {
    let engine = &server.worker.engine;
    let (slot_wait, _attached) = match engine.transport.grant_transport() {
        // Control planes in other processes grant sessions through the transport.
        Some(_) => (SlotWait::Limited, None),
        None => {
            let slots: Arc<dyn SlotProvider> = slot_pool.clone();
            (SlotWait::Unlimited, Some(engine.dispatcher.slots().attach(slots)))
        }
    };
    Intake { server, tasks, slot_pool, stop, slot_wait }.take_tokens().await;
}

/// How long a token may wait for a free slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotWait {
    /// No other process could serve the token, so it may wait here without a limit.
    Unlimited,
    /// Another worker may have a free slot.
    Limited,
}

struct Intake {
    server: Arc<SessionServer>,
    tasks: TaskTracker,
    slot_pool: Arc<SlotPool>,
    stop: CancellationToken,
    slot_wait: SlotWait,
}

impl Intake {
    async fn take_tokens(&self) {
        let worker = &self.server.worker;
        while !self.stop.is_cancelled() {
            let opened = worker.engine.transport.tokens(&worker.options.pool).await;
            let failed = match opened {
                Ok(mut source) => self.take_from(source.as_mut()).await,
                Err(error) => Err(error),
            };
            if let Err(error) = failed {
                tracing::warn!(error = error.chain(), retry_in = ?RETRY, "cannot take tokens; retrying");
                tokio::select! {
                    () = self.stop.cancelled() => {}
                    () = tokio::time::sleep(RETRY) => {}
                }
            }
        }
    }

    /// Takes tokens until `stop` or until the source fails. Holds no slots while it waits for tokens, because grants
    /// need slots too.
    async fn take_from(&self, source: &mut dyn TokenSource) -> Result<()> {
        loop {
            let Some(slot) = self.acquire_slot().await else { return Ok(()) };
            drop(slot);
            let count = self.slot_pool.slots().available_permits().max(1);
            let Some(tokens) = self.stop.run_until_cancelled(self.take(source, count)).await else {
                return Ok(());
            };
            let tokens = tokens?;
            self.slot_pool.set_backlogged(tokens.len() >= count);
            let mut tokens = tokens.into_iter();
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

    /// Takes tokens. If none arrive within [`BACKLOG_PROBE`], no token is waiting for the free slots.
    async fn take(&self, source: &mut dyn TokenSource, count: usize) -> Result<Vec<Box<dyn Token>>> {
        let taking = source.take(count);
        tokio::pin!(taking);
        match timeout(BACKLOG_PROBE, &mut taking).await {
            Ok(taken) => taken,
            Err(_) => {
                self.slot_pool.set_backlogged(false);
                taking.await
            }
        }
    }

    fn serve(&self, token: Box<dyn Token>, slot: OwnedSemaphorePermit) {
        let (server, slot) = (Arc::clone(&self.server), self.slot_pool.occupy(slot));
        let span = log_spans::session_span(token.tenant(), token.session());
        let serving = async move {
            server.serve(token).await;
            drop(slot);
        };
        self.tasks.spawn(serving.instrument(span));
    }

    async fn put_back(&self, tokens: impl Iterator<Item = Box<dyn Token>>) {
        for token in tokens {
            if let Err(error) = token.retry_after(PUT_BACK_DELAY).await {
                tracing::debug!(error = error.chain(), "token was not put back; it will be redelivered");
            }
        }
    }

    /// Waits for a slot. The semaphore is fair, so a waiting token gets the next free slot before any grant.
    async fn slot_for_token(&self) -> Option<OwnedSemaphorePermit> {
        match self.slot_wait {
            SlotWait::Unlimited => self.acquire_slot().await,
            SlotWait::Limited => timeout(MAX_SLOT_WAIT, self.acquire_slot()).await.ok().flatten(),
        }
    }

    /// Waits for a slot. `None` once the intake has stopped.
    async fn acquire_slot(&self) -> Option<OwnedSemaphorePermit> {
        let slots = Arc::clone(self.slot_pool.slots());
        let slot = self.stop.run_until_cancelled(slots.acquire_owned()).await?;
        slot.ok()
    }
}
