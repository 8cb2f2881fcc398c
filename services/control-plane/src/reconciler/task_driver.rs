//! Runs one background task: when it is triggered, at its pace, and soon again after a failure.

use std::{panic::AssertUnwindSafe, time::Duration};

use chrono::Utc;
use futures::FutureExt as _;
use remuda_domain::{Error, error::Result};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::{
    background_task::{BackgroundTask, Round},
    leadership::Term,
    task_record::Recorder,
};

/// Minimum pause between two rounds, however often a task is triggered.
const MIN_PAUSE: Duration = Duration::from_millis(50);
/// A task pauses this many times the duration of its round: tables may be large, and the same database serves callers.
const REST_FACTOR: u32 = 10;
/// Upper bound of that pause: monitoring takes a task for stalled that did nothing for a minute.
const MAX_REST: Duration = Duration::from_secs(30);
const FIRST_RETRY: Duration = Duration::from_millis(100);
const MAX_RETRY: Duration = Duration::from_secs(2);
/// Timeout of a round. Every call in a round has its own timeout; this bounds their sum in the largest installation.
const ROUND_TIMEOUT: Duration = Duration::from_secs(10 * 60);

pub(super) struct Driver {
    pub(super) term: Term,
    pub(super) recorder: Recorder,
}

impl Driver {
    /// Runs rounds while this process leads, until `stop`. The first one starts at once: most repairs are due at a start.
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
                outcome = run_round(task.as_mut()) => outcome,
            };
            let counts = outcome.as_ref().map(|round| &round.counts);
            self.recorder.record(task.name(), started_at, begun.elapsed(), counts).await;
            let pause = match &outcome {
                Ok(round) => {
                    retry = FIRST_RETRY;
                    let pace = task.pace().max((begun.elapsed() * REST_FACTOR).min(MAX_REST));
                    round.again_in.map_or(pace, |again| again.min(pace)).max(MIN_PAUSE)
                }
                Err(_) => {
                    let longer = (retry * 2).min(MAX_RETRY);
                    std::mem::replace(&mut retry, longer)
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(pause) => {}
                // Triggers are ignored while the task fails: often the trigger's cause is what makes it fail.
                () = task.triggered(), if outcome.is_ok() => sleep_until(begun + MIN_PAUSE).await,
            }
        }
    }
}

/// Runs a round. A panic or a timeout counts as a failure.
async fn run_round(task: &mut dyn BackgroundTask) -> Result<Round> {
    let round = AssertUnwindSafe(task.round()).catch_unwind();
    match timeout(ROUND_TIMEOUT, round).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) => Err(Error::internal("the round panicked")),
        Err(_) => Err(Error::unavailable(format!("the round did not end within {ROUND_TIMEOUT:?}"))),
    }
}
