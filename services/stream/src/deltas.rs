//! Pieces of messages for one reader.
//!
//! They are a courtesy: nothing here waits for long, keeps much, or ends a stream. What gets lost is in the message that follows.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use remuda_domain::{Event, EventBody, MessageId, RunId, SessionId, TenantId, error::Result, event::Delta};
use remuda_transport::{DeltaSource, Transport};
use tokio::time::{Instant, sleep_until};

/// A source that ended is opened again this long after it was opened last, at the earliest.
const REOPEN_PACE: Duration = Duration::from_secs(1);
/// Messages that are known to be complete. More than can have pieces in a source's buffer.
const REMEMBERED: usize = 512;

type Opening = BoxFuture<'static, Result<Box<dyn DeltaSource>>>;

/// Where the pieces come from now.
enum Source {
    Open(Box<dyn DeltaSource>),
    /// Kept between calls, so that one that is cut short goes on where it was.
    Opening(Opening),
    Ended,
}

pub(crate) struct Deltas {
    transport: Arc<dyn Transport>,
    tenant: TenantId,
    session: SessionId,
    /// Only this run's.
    run: Option<RunId>,
    source: Source,
    next_try: Instant,
    completed: VecDeque<MessageId>,
}

impl Deltas {
    /// Listens from now on; if that is not possible at once, then later.
    pub(crate) async fn open(
        transport: Arc<dyn Transport>,
        tenant: TenantId,
        session: SessionId,
        run: Option<RunId>,
    ) -> Self {
        let next_try = Instant::now() + REOPEN_PACE;
        let source = match transport.subscribe_deltas(tenant, session).await {
            Ok(source) => Source::Open(source),
            Err(error) => {
                tracing::debug!(%session, error = error.chain(), "no deltas for now");
                Source::Ended
            }
        };
        Self { transport, tenant, session, run, source, next_try, completed: VecDeque::new() }
    }

    /// Notes which messages are complete: their pieces are of no use any more.
    pub(crate) fn note(&mut self, events: &[Event]) {
        for event in events {
            if let EventBody::MessageCompleted { message, .. } = &event.body {
                if self.completed.len() == REMEMBERED {
                    self.completed.pop_front();
                }
                self.completed.push_back(*message);
            }
        }
    }

    /// The next pieces that the reader wants. Waits for as long as there are none. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Vec<Delta> {
        loop {
            match &mut self.source {
                Source::Open(source) => match source.next().await {
                    Some(mut deltas) => {
                        deltas.retain(|delta| {
                            self.run.is_none_or(|run| run == delta.run)
                                && !self.completed.contains(&delta.message)
                        });
                        if !deltas.is_empty() {
                            return deltas;
                        }
                    }
                    None => self.source = Source::Ended,
                },
                Source::Ended => {
                    sleep_until(self.next_try).await;
                    self.next_try = Instant::now() + REOPEN_PACE;
                    let (transport, tenant, session) =
                        (Arc::clone(&self.transport), self.tenant, self.session);
                    self.source = Source::Opening(Box::pin(async move {
                        transport.subscribe_deltas(tenant, session).await
                    }));
                }
                Source::Opening(opening) => match opening.await {
                    Ok(source) => self.source = Source::Open(source),
                    Err(error) => {
                        tracing::debug!(session = %self.session, error = error.chain(), "no deltas for now");
                        self.source = Source::Ended;
                    }
                },
            }
        }
    }
}
