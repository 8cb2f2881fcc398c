//! Takes tokens, never more than there are free slots.

use std::{sync::Arc, time::Duration};

use remuda_transport::TokenSource;
use tokio::sync::Semaphore;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument as _;

use crate::{context, session::SessionServer};

const RETRY: Duration = Duration::from_secs(1);

/// Runs until `stop`. Each token gets a task of `tasks`.
pub(crate) async fn run(server: Arc<SessionServer>, tasks: TaskTracker, stop: CancellationToken) {
    let slots = Arc::new(Semaphore::new(server.worker.options.slots as usize));
    while !stop.is_cancelled() {
        let opened = server.worker.engine.transport.tokens(&server.worker.options.pool).await;
        let failed = match opened {
            Ok(mut source) => take_all(&server, source.as_mut(), &slots, &tasks, &stop).await,
            Err(error) => Some(error),
        };
        if let Some(error) = failed {
            tracing::warn!(error = error.chain(), retry_in = ?RETRY, "tokens cannot be taken at the moment");
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(RETRY) => {}
            }
        }
    }
}

/// Takes tokens until `stop`, or until the source fails.
async fn take_all(
    server: &Arc<SessionServer>,
    source: &mut dyn TokenSource,
    slots: &Arc<Semaphore>,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) -> Option<remuda_domain::Error> {
    loop {
        let acquired = tokio::select! {
            biased;
            () = stop.cancelled() => return None,
            permit = Arc::clone(slots).acquire_owned() => permit,
        };
        let Ok(mut permit) = acquired else { return None };
        // Only this loop takes permits, so those that are free now stay free.
        while let Ok(more) = Arc::clone(slots).try_acquire_owned() {
            permit.merge(more);
        }
        let taken = tokio::select! {
            biased;
            () = stop.cancelled() => return None,
            taken = source.take(permit.num_permits()) => taken,
        };
        let tokens = match taken {
            Ok(tokens) => tokens,
            Err(error) => return Some(error),
        };
        for token in tokens {
            let Some(slot) = permit.split(1) else {
                // A source that gave more than asked for: the token comes back by itself.
                tracing::error!("more tokens than free slots");
                break;
            };
            let server = Arc::clone(server);
            let span = context::of_session(token.tenant(), token.session());
            let serving = async move {
                server.serve(token).await;
                drop(slot);
            };
            tasks.spawn(serving.instrument(span));
        }
    }
}
