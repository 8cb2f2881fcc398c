//! Retries calls to the store for as long as their caller owns its work.

use std::{future::Future, time::Duration};

use remuda_domain::{Code, Error, error::Result};
use tokio_util::sync::CancellationToken;

const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const MAX_BACKOFF: Duration = Duration::from_secs(2);

/// Retries with backoff while the store is unavailable, until `abandon`.
pub async fn retry_until_abandoned<T, F>(
    abandon: &CancellationToken,
    mut attempt: impl FnMut() -> F,
) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let mut backoff = FIRST_BACKOFF;
    loop {
        let outcome = tokio::select! {
            biased;
            () = abandon.cancelled() => return Err(session_abandoned()),
            outcome = attempt() => outcome,
        };
        match outcome {
            Err(error) if error.code().is_outage() => {
                tracing::warn!(error = error.chain(), retry_in = ?backoff, "store unavailable; retrying");
            }
            outcome => return outcome,
        }
        tokio::select! {
            () = abandon.cancelled() => return Err(session_abandoned()),
            () = tokio::time::sleep(backoff) => {}
        }
        backoff = (backoff * 2).min(MAX_BACKOFF);
    }
}

/// The error of work whose session was abandoned.
#[must_use]
pub fn session_abandoned() -> Error {
    Error::new(Code::OwnershipLost, "the session was abandoned")
}
