//! Runs one background task: when there is a reason, when its pace says so, and soon again after a failure.

use std::{panic::AssertUnwindSafe, time::Duration};

use chrono::Utc;
use futures::FutureExt as _;
use remuda_domain::{Error, error::Result};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::{
    leadership::Term,
    record::Recorder,
    task::{BackgroundTask, Round},
};

/// Two rounds are never closer than this, however often a task is called.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
/// A task rests so many times as long as its round took: what is looked through may be large, and the same database serves callers.
const REST: u32 = 10;
/// But no longer than this: who watches tasks takes one for stalled that did nothing for a minute.
const LONGEST_REST: Duration = Duration::from_secs(30);
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LONGEST_RETRY: Duration = Duration::from_secs(2);
/// Every call a round makes has a limit of its own; this is for the sum of them in the largest installation.
const ROUND_LIMIT: Duration = Duration::from_secs(10 * 60);

pub(super) struct Driver {
    pub(super) term: Term,
    pub(super) recorder: Recorder,
}

impl Driver {
    /// Runs rounds while this process leads, until `stop`. The first one comes at once: a start is when most may be missing.
    pub(super) async fn run(mut self, mut task: Box<dyn BackgroundTask>, stop: CancellationToken) {
        let mut retry = FIRST_RETRY;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.term.held() => {}
            }
            let begun = Instant::now();
            let started_at = Utc::now();
            let outcome = tokio::select! {
                () = stop.cancelled() => return,
                outcome = guarded(task.as_mut()) => outcome,
            };
            let counts = outcome.as_ref().map(|round| &round.counts);
            self.recorder.record(task.name(), started_at, begun.elapsed(), counts).await;
            let pause = match &outcome {
                Ok(round) => {
                    retry = FIRST_RETRY;
                    let pace = task.pace().max((begun.elapsed() * REST).min(LONGEST_REST));
                    round.again_in.map_or(pace, |again| again.min(pace)).max(SHORTEST_PAUSE)
                }
                Err(_) => {
                    let longer = (retry * 2).min(LONGEST_RETRY);
                    std::mem::replace(&mut retry, longer)
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(pause) => {}
                // What calls a task most is what makes it fail: while it fails, it is not called before its time.
                () = task.called(), if outcome.is_ok() => sleep_until(begun + SHORTEST_PAUSE).await,
            }
        }
    }
}

/// A round that panics or hangs is a round that failed.
async fn guarded(task: &mut dyn BackgroundTask) -> Result<Round> {
    let round = AssertUnwindSafe(task.round()).catch_unwind();
    match timeout(ROUND_LIMIT, round).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) => Err(Error::internal("the round panicked")),
        Err(_) => Err(Error::unavailable(format!("the round did not end within {ROUND_LIMIT:?}"))),
    }
}
