//! Reports rounds of background tasks to metrics, the store and the log.

use std::{sync::Arc, time::Duration};

use remuda_domain::{
    Error, Timestamp,
    background_task::{TaskCounts, TaskRound},
};
use remuda_store::Store;
use remuda_telemetry::metrics::{
    self, Counter, Gauge, KeyValue,
    registry::{TASK_ITEMS, TASK_LAST_SUCCESS, TASK_ROUNDS, label},
};
use tokio::time::Instant;

/// How often an idle task is written to the store, to show that it is alive.
const IDLE_WRITE_EVERY: Duration = Duration::from_secs(10);

/// Records the rounds of one task.
pub(super) struct Recorder {
    store: Arc<dyn Store>,
    holder: String,
    rounds: Counter<u64>,
    items: Counter<u64>,
    last_success: Gauge<f64>,
    /// When a round was last written to the store, and whether it had failed.
    written: Option<(Instant, bool)>,
    failing: bool,
}

impl Recorder {
    pub(super) fn new(store: Arc<dyn Store>, holder: String) -> Self {
        Self {
            store,
            holder,
            rounds: metrics::counter(&TASK_ROUNDS),
            items: metrics::counter(&TASK_ITEMS),
            last_success: metrics::gauge(&TASK_LAST_SUCCESS),
            written: None,
            failing: false,
        }
    }

    pub(super) async fn record(
        &mut self,
        name: &'static str,
        started_at: Timestamp,
        duration: Duration,
        result: Result<&TaskCounts, &Error>,
    ) {
        self.measure(name, started_at, duration, result);
        self.log(name, result);
        if self.is_worth_writing(result) {
            let round = TaskRound {
                name: name.to_owned(),
                holder: self.holder.clone(),
                started_at,
                duration,
                result: result.cloned().map_err(Error::chain),
            };
            match self.store.record_task(&round).await {
                Ok(()) => self.written = Some((Instant::now(), result.is_err())),
                Err(error) => tracing::debug!(task = name, error = error.chain(), "recording a round failed"),
            }
        }
    }

    /// True if something happened, or if the record is out of date. Idle rounds are seldom written.
    fn is_worth_writing(&self, result: Result<&TaskCounts, &Error>) -> bool {
        let notable = result.map_or(true, |counts| !counts.is_empty());
        notable || self.written.is_none_or(|(at, failed)| failed || at.elapsed() >= IDLE_WRITE_EVERY)
    }

    fn measure(
        &self,
        name: &'static str,
        started_at: Timestamp,
        duration: Duration,
        result: Result<&TaskCounts, &Error>,
    ) {
        let task = KeyValue::new(label::TASK, name);
        let outcome = if result.is_ok() { "ok" } else { "error" };
        self.rounds.add(1, &[task.clone(), KeyValue::new(label::RESULT, outcome)]);
        let Ok(counts) = result else { return };
        for (item, count) in counts {
            self.items.add(*count, &[task.clone(), KeyValue::new(label::ITEM, item.clone())]);
        }
        let ended_at = started_at + duration;
        let seconds = Duration::from_micros(u64::try_from(ended_at.timestamp_micros()).unwrap_or_default());
        self.last_success.record(seconds.as_secs_f64(), &[task]);
    }

    /// Logs the first failure of a row, and the recovery. Failures in between are debug lines.
    fn log(&mut self, name: &'static str, result: Result<&TaskCounts, &Error>) {
        let was_failing = std::mem::replace(&mut self.failing, result.is_err());
        match result {
            Ok(counts) => {
                if was_failing {
                    tracing::info!(task = name, "background task recovered");
                }
                if !counts.is_empty() {
                    tracing::info!(task = name, ?counts, "background task did work");
                }
            }
            Err(error) if was_failing => {
                tracing::debug!(task = name, error = error.chain(), "background task still fails");
            }
            Err(error) => {
                tracing::warn!(task = name, error = error.chain(), "background task failed; retrying");
            }
        }
    }
}
