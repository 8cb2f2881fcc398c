//! Row data of the size of a run, and the timed loop that writes it.

use std::time::{Duration, Instant};

use uuid::Uuid;

/// Rows per statement: what is coalesced when every caller has one run under way.
pub(super) const BATCH: usize = super::CALLERS / 2;
/// The input of a run with one small call.
pub(super) const INPUT: &str = r#"{"kind":"tools","calls":[{"id":"call_01m7h3dpn7ejfa8xz25y9kyw89","tool":"noop","arguments":{},"parallel":false}],"continue_on_error":false}"#;
pub(super) const RESULT: &str = r#"[{"id":"step_01m7h3dpn7ejfa8xz25y9kyw89","index":0,"kind":"tool","started_at":"2026-11-17T07:00:00.000001Z","finished_at":"2026-11-17T07:00:00.000002Z","outcome":{"status":"completed","output":""}}]"#;

pub(super) fn ids() -> Vec<Uuid> {
    (0..BATCH).map(|_| Uuid::now_v7()).collect()
}

/// Repeats `work` until the time is over, and returns the rows per second.
pub(super) async fn repeat(
    time: Duration,
    mut work: impl AsyncFnMut() -> anyhow::Result<usize>,
) -> anyhow::Result<f64> {
    let (begun, mut rows) = (Instant::now(), 0);
    while begun.elapsed() < time {
        rows += work().await?;
    }
    Ok(rows as f64 / begun.elapsed().as_secs_f64())
}
